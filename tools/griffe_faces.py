"""For the API reference: a docstring ``As ``Class.method``.`` becomes the docstring of that method.

The blocking clients say of each method that it is as the asynchronous one. In the source that is enough;
a reader of the site should not have to follow it.
"""

from __future__ import annotations

import re
from typing import Any

from griffe import Attribute, Class, Docstring, Extension, Function, Module, Object

_MADE = re.compile(r"(?:blocking|arguments_of)\((\w+)\.(\w+)\)")
_AS = re.compile(r"As ``(\w+)(?:\.(\w+))?``(.*)", re.DOTALL)


def _full(function: Function, module: Module) -> None:
    found = _AS.fullmatch(function.docstring.value.strip()) if function.docstring else None
    if found is None or function.docstring is None:
        return
    name, method, rest = found.groups()
    owner = module.members.get(name)
    target = owner.members.get(method or "__init__") if isinstance(owner, Class) else None
    if target is None or target.docstring is None:
        raise LookupError(f"{function.path}: {name}.{method} has no docstring")
    more = rest.strip(" .;,\n")
    text = target.docstring.value + (f"\n\n{more[0].upper()}{more[1:]}." if more else "")
    function.docstring = Docstring(text, parent=function, lineno=function.docstring.lineno)


def _copied(name: str, said: object, owner: Class, module: Module, member: Object) -> None:
    """Put a function into ``owner`` that has parameters and docstring of the one that ``said`` names."""
    found = _MADE.fullmatch(str(said))
    if found is None:
        return
    pattern = module.members[found[1]].members[found[2]]
    if not isinstance(pattern, Function):
        raise TypeError(f"{pattern.path} is not a function")
    made = Function(
        name, parameters=pattern.parameters, returns=pattern.returns, lineno=member.lineno, endlineno=member.endlineno)
    if pattern.docstring is not None:
        made.docstring = Docstring(pattern.docstring.value, parent=made, lineno=member.lineno)
    owner.set_member(name, made)


class Faces(Extension):
    """Gives the methods of blocking clients the parameters and docstrings of the asynchronous ones."""

    def on_package(self, *, pkg: Module, **_: Any) -> None:
        """Change the docstrings of all classes of ``tailrace.client``."""
        client = pkg.members.get("client")
        if not isinstance(client, Module):
            return
        for module in client.modules.values():
            for owner in module.classes.values():
                for name, member in list(owner.members.items()):
                    if isinstance(member, Attribute):
                        _copied(name, member.value, owner, module, member)
                    elif isinstance(member, Function):
                        for decorator in member.decorators:
                            _copied(name, decorator.value, owner, module, member)
                for function in owner.functions.values():
                    _full(function, module)
