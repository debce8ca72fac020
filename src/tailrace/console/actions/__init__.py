"""Actions of the console (``serve --console-actions``): forms that users confirm, and that the broker checks.

An action sends the requests that a client would send, as its user, over `Calls`. The broker checks and records them as
those of a client, so an action can do nothing that its user may not do otherwise. Each action has three steps:

1. a form, which a GET returns, filled with what the address says;
2. a POST of the form returns a page that says what will happen, with a token (`Tokens`);
3. a POST with this token starts a job (`Jobs`), which ends even if the browser has gone. The answer leads to its page.
"""

from tailrace.console.actions.service import ConsoleActions

__all__ = ["ConsoleActions"]
