"""POP consumption: messages are handed out for a time, and delivered again if they are not acknowledged in it."""
