"""Command-line options from the fields of a config, which hold name, type, default and help."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer

from sparsedp.runs.algorithms import ALGORITHMS
from sparsedp.runs.config import IMPLIED, Choices, Group, RunConfig
from sparsedp.runs.plain_yaml import parse_yaml

_METAVARS = {int: "<int>", float: "<float>", str: "<str>", dict: "<mapping>"}


Command = Callable[..., None]


def with_settings(command: Command) -> Command:
    """Give ``command`` an option for every field of ``RunConfig`` (see ``settings_of``)."""
    return settings_of(RunConfig)(command)


def settings_of(
    config: type[RunConfig], without: frozenset[str] = frozenset()
) -> Callable[[Command], Command]:
    """Give a command an option for every field of a config, but those in ``without``, in panels.

    Its argument ``settings`` becomes a dict of the options that were given. They are texts: the config
    parses and checks them, so that an option and a line of a settings file are refused in the same words.
    """

    def decorate(command: Command) -> Command:
        return _with_options(command, config, [each for each in config.model_fields if each not in without])

    return decorate


def _with_options(command: Command, config: type[RunConfig], names: Sequence[str]) -> Command:
    signature = inspect.signature(command, eval_str=True)
    command_parameters = {name: each for name, each in signature.parameters.items() if name != "settings"}
    options = {name: _parameter(name, config) for name in names}

    @functools.wraps(command)
    def parsed(**values: Any) -> None:
        options_set = {name: values.pop(name) for name in options}
        settings = {
            name: _value(name, text, config) for name, text in options_set.items() if text is not None
        }
        command(**values, settings=settings)

    parameters = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in command_parameters.values()]
    parsed.__signature__ = signature.replace(parameters=[*parameters, *options.values()])  # type: ignore[attr-defined]
    parsed.__annotations__ = {name: each.annotation for name, each in (command_parameters | options).items()}
    return parsed


def help_of(
    name: str, *, algorithms: bool = True, default: bool = True, config: type[RunConfig] = RunConfig
) -> str:
    """What a setting means, its ``default``, and which ``algorithms`` read it where not all do."""
    field = config.model_fields[name]
    text = field.description or ""
    if name == "algorithm":
        text = f"{text.removesuffix('.')}: {', '.join(ALGORITHMS)}."
    value = field.default if field.default is not None else IMPLIED.get(name)
    if default and isinstance(value, int | float):
        text = f"{text} Default: {value:g}."
    elif default and isinstance(value, str):
        text = f"{text} Default: {value}."
    elif default and value is None and name in (*Choices._fields, "algorithm"):
        text = f"{text} Default: the recipe's (see `sparsedp plan --data`)."
    readers = [each.name for each in ALGORITHMS.values() if name in each.options]
    return f"{text} For {', '.join(readers)}." if readers and algorithms else text


def _parameter(name: str, config: type[RunConfig]) -> inspect.Parameter:
    field = config.model_fields[name]
    group = next(each for each in field.metadata if isinstance(each, Group))
    option = typer.Option(
        f"--{name.replace('_', '-')}",
        help=help_of(name, config=config),
        metavar=_metavar(_type_of(field.annotation)),
        rich_help_panel=group.title,
        autocompletion=_completion(name, _type_of(field.annotation)),
    )
    annotation = Annotated[str | None, option]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _completion(name: str, kind: Any) -> Callable[[str], list[str]] | None:
    """What a shell completes the option's value with: the values of a setting that has a list of them."""
    if name != "algorithm" and get_origin(kind) is not Literal:
        return None
    values = list(ALGORITHMS) if name == "algorithm" else list(get_args(kind))
    return lambda incomplete: [value for value in values if value.startswith(incomplete)]


def _type_of(annotation: Any) -> Any:
    """``float`` of ``Annotated[float, ...] | None``."""
    if get_origin(annotation) in (Union, UnionType):
        (annotation,) = (each for each in get_args(annotation) if each is not NoneType)
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def _metavar(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return f"<{'|'.join(get_args(kind))}>"
    return _METAVARS[get_origin(kind) or kind]


def _value(name: str, text: str, config: type[RunConfig]) -> Any:
    """The text, or the mapping that it spells: the config parses numbers itself."""
    if get_origin(_type_of(config.model_fields[name].annotation)) is not dict:
        return text
    return parse_yaml(text, f"{name}: {text[:80]!r}")
