"""Reads the user's exceptions and classes without giving them a chance to raise.

Whatever a class defines over the fields of Python's own (``__cause__``, ``__qualname__``, even ``__class__``)
is passed by: they are read through the descriptors of ``BaseException`` and ``type``. Where the user's code
has to be called, *everything* that it raises is caught, ``KeyboardInterrupt`` and ``SystemExit`` too: it runs
while a failure is being described, and whatever came out there would end the process of other attempts.
Strings and numbers are made plain, since a subclass may do anything in any method.
"""

from __future__ import annotations

from typing import TypeGuard, TypeVar

Kind = TypeVar("Kind")

_ANCESTORS = type.__dict__["__mro__"]
_NAME = type.__dict__["__qualname__"]
_MODULE = type.__dict__["__module__"]
_GROUP_MEMBERS = BaseExceptionGroup.__dict__["exceptions"]


def is_a(value: object, kind: type[Kind]) -> TypeGuard[Kind]:
    """``isinstance`` by the real class: a ``__class__`` of the value's own is not asked."""
    return issubclass(type(value), kind)


def real_ancestors(kind: type) -> tuple[type, ...]:
    """A class and its ancestors, most special first."""
    ancestors: tuple[type, ...] = _ANCESTORS.__get__(kind)
    return ancestors


def real_name(kind: type) -> str:
    """Qualified name of a class within its module."""
    return str.__str__(_NAME.__get__(kind))


def real_qualified_name(kind: type) -> str:
    """``module.Class`` as patterns spell it; builtins, and classes that name no module, without one."""
    try:
        module = plain_str(_MODULE.__get__(kind))
    except AttributeError:
        # A class may delete it.
        module = None
    return real_name(kind) if module is None or module == "builtins" else f"{module}.{real_name(kind)}"


def real_field(error: BaseException, name: str) -> object:
    """A field that ``BaseException`` itself has."""
    found: object = BaseException.__dict__[name].__get__(error)
    return found


def group_members(error: BaseException) -> tuple[BaseException, ...]:
    """Members of an exception group; of any other exception none."""
    if not is_a(error, BaseExceptionGroup):
        return ()
    members: tuple[BaseException, ...] = _GROUP_MEMBERS.__get__(error)
    return members


def read_attribute(thing: object, name: str) -> object:
    """An attribute, or None if there is none or reading it raises."""
    try:
        return getattr(thing, name, None)
    except BaseException:  # noqa: BLE001 - see the module's docstring: then it says nothing
        return None


def text_of(error: BaseException) -> str:
    """``str(error)``, or which exception that raised."""
    try:
        return str.__str__(str(error))
    except BaseException as broken:  # noqa: BLE001 - see the module's docstring: the text says so
        return f"<its __str__ raised {real_name(type(broken))}>"


def plain_str(value: object) -> str | None:
    """A text without the surprises of a subclass; None if it is none."""
    return str.__str__(value) if is_a(value, str) else None


def plain_int(value: object) -> int | None:
    """A whole number without the surprises of a subclass; None if it is none. A truth value is none."""
    return int.__int__(value) if is_a(value, int) and type(value) is not bool else None
