"""The short strings that a spec, YAML and the command line share.

`name[:argument][?key=value&key=value]`, alternatives joined by ` | `; or `package.module:attribute[?...]`.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl

from ceb_gym.errors import CebError, ConfigurationError

OBJECT = "<object>"


@dataclass(frozen=True, slots=True)
class Spec:
    """A parsed spec string."""

    name: str
    argument: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


def parse_value(text: str) -> Any:
    """Reads an option's value: true, false, none, a number, or else text."""
    lowered = text.lower()
    if lowered in ("true", "false"):
        return lowered == "true"
    if lowered in ("none", "null"):
        return None
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text


def parse_spec(kind: str, text: str) -> Spec:
    """Parses one alternative. Raises ConfigurationError for anything that is not a spec."""
    if text == OBJECT:
        raise ConfigurationError(
            f"This environment was built with a {kind} that was an object, which no spec can hold: "
            f"pass {kind}=... again when you rebuild it."
        )
    head, _, query = text.strip().partition("?")
    name, _, argument = head.partition(":")
    if not name:
        raise ConfigurationError(f"The {kind} {text!r} has no name: write name[:argument][?key=value&...].")
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError:
        raise ConfigurationError(
            f"The options of the {kind} {text!r} cannot be read: write ?key=value&key=value."
        ) from None
    keys = [key for key, _ in pairs]
    for key in keys:
        if keys.count(key) > 1:
            raise ConfigurationError(f"The {kind} {text!r} gives {key} twice: give it once.")
    return Spec(name, argument or None, {key: parse_value(value) for key, value in pairs})


def load(kind: str, path: str) -> Any:
    """Imports `package.module:attribute`."""
    module_name, _, attribute = path.partition(":")
    if not all(part.isidentifier() for part in (*module_name.split("."), *attribute.split("."))):
        raise ConfigurationError(f"The {kind} {path!r} is not of the form package.module:name.")
    try:
        value: Any = importlib.import_module(module_name)
        for part in attribute.split("."):
            value = getattr(value, part)
    except Exception as error:  # a module is foreign code: whatever it raises, it cannot be imported
        reason = str(error) if isinstance(error, ImportError | AttributeError) else repr(error)
        raise ConfigurationError(f"The {kind} {path!r} cannot be imported: {reason}.") from error
    return value


def check_members(kind: str, part: Any, protocol: type) -> None:
    """Raises ConfigurationError where a part is a class or lacks what its protocol asks for, by name."""
    if isinstance(part, type):
        raise ConfigurationError(f"The {kind} {part.__name__} is a class: pass an instance of it.")
    wanted = [
        name
        for base in reversed(protocol.__mro__)
        if base.__module__ == protocol.__module__
        for name in vars(base)
        if not name.startswith("_")
    ]
    missing = [f"`{name}`" for name in wanted if not hasattr(part, name)]
    if missing:
        raise ConfigurationError(
            f"The {kind} {part!r} lacks {', '.join(missing)}: see ceb_gym.protocols.{protocol.__name__}."
        )


def _is_path(spec: Spec) -> bool:
    """Whether a spec reads as `package.module:name`, rather than as a name and its argument."""
    parts = [*spec.name.split("."), *(spec.argument or "").split(".")]
    return all(part.isidentifier() for part in parts)


def construct(
    kind: str,
    shown: str,
    factory: Any,
    options: Mapping[str, Any],
    fixed: Mapping[str, Any] | None = None,
    also_known: tuple[str, ...] = (),
) -> Any:
    """Calls a class or function with options, and names the valid ones where an option is unknown.

    Args:
        kind: What it is, for messages.
        shown: What the user wrote.
        factory: Class or function.
        options: From the spec.
        fixed: Further arguments, given only where they are taken; no option can replace them.
        also_known: Options that were taken out before, for the message.

    Raises:
        ConfigurationError: If the factory cannot be called with these, or refuses their values.
    """
    try:
        parameters = inspect.signature(factory).parameters
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"The {kind} {shown!r} cannot be built: {error}.") from error
    given = {name: value for name, value in (fixed or {}).items() if name in parameters}
    by_name = {
        name: parameter
        for name, parameter in parameters.items()
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY) and name not in given
    }
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    unknown = [key for key in options if key in given or not (takes_any or key in by_name)]
    if unknown:
        known = ", ".join((*by_name, *also_known)) or "none"
        raise ConfigurationError(f"The {kind} {shown!r} has no option {unknown[0]!r}: it takes {known}.")
    for name, parameter in by_name.items():
        if parameter.default is parameter.empty and name not in options:
            raise ConfigurationError(f"The {kind} {shown!r} needs {name}: give it as an argument or option.")
    try:
        return factory(**options, **given)
    except CebError:
        raise
    except (Exception, SystemExit) as error:  # foreign code
        raise ConfigurationError(
            f"The {kind} {shown!r} cannot be built: {type(error).__name__}: {error}"
        ) from error


def build_named(
    kind: str, text: str, known: Mapping[str, tuple[Any, str | None]], **fixed: Any
) -> tuple[Any, Spec]:
    """Builds the part that a spec names.

    Args:
        kind: What it is, for messages.
        text: The spec.
        known: For each name the factory and which of its parameters the argument after the colon fills.
        fixed: Further arguments, given only to factories that take them; no option can replace them.

    Returns:
        The part and the parsed spec.
    """
    if " | " in text:
        raise ConfigurationError(f"The {kind} {text!r} joins several: this version takes one.")
    spec = parse_spec(kind, text)
    return build_parsed(kind, text, spec, known, **fixed), spec


def build_parsed(
    kind: str,
    text: str,
    spec: Spec,
    known: Mapping[str, tuple[Any, str | None]],
    also_known: tuple[str, ...] = (),
    **fixed: Any,
) -> Any:
    """Builds the part that a parsed spec names; `text` is what the user wrote, the rest as `build_named`."""
    if spec.name in known:
        factory, argument_name = known[spec.name]
        options = dict(spec.options)
        if spec.argument is not None:
            if argument_name is None:
                raise ConfigurationError(f"The {kind} {spec.name} takes no argument, got {spec.argument!r}.")
            if argument_name in options:
                raise ConfigurationError(f"The {kind} {text!r} gives {argument_name} twice: give it once.")
            options[argument_name] = parse_value(spec.argument)
    elif _is_path(spec):
        factory, options = load(kind, f"{spec.name}:{spec.argument}"), dict(spec.options)
    else:
        names = ", ".join(sorted(known))
        raise ConfigurationError(
            f"There is no {kind} {spec.name!r}: choose one of {names}, or write package.module:name."
        )
    if not callable(factory):  # an object that a module holds ready
        return factory
    return construct(kind, text, factory, options, fixed, also_known)
