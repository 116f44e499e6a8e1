"""The generation parameters as options: one for each field of GenerationParams.

The options are made when the command is parsed or its help is shown, because every other command starts without
pydantic.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

if TYPE_CHECKING:
    from guanaco.parameters import GenerationParams, ParameterInfo

GIVEN = "guanaco_cli.parameters"


class ParameterizedCommand(TyperCommand):
    """A command that takes the generation parameters beside its own options; ``given_params`` reads them."""

    has_parameters = False

    def get_params(self, ctx: Any) -> list[Any]:
        if not self.has_parameters:
            self.params += _options()
            self.has_parameters = True
        return super().get_params(ctx)

    def invoke(self, ctx: Any) -> Any:
        from guanaco.parameters import parameters

        ctx.meta[GIVEN] = {one.name: ctx.params.pop(one.name) for one in parameters()}
        return super().invoke(ctx)


def given_params(context: typer.Context) -> GenerationParams:
    """Return the parameters of a command's call. Raises pydantic's ValidationError."""
    from guanaco.parameters import GenerationParams, parameters

    given = {
        one.name: _unescaped(value) if one.is_list else value
        for one in parameters()
        if (value := context.meta[GIVEN][one.name]) not in (None, (), [])  # empty: not given
    }
    return GenerationParams.model_validate(given)


def options_by_field(command: Any) -> dict[str, str]:
    """Return the options of the generation parameters, like ``--top-p``, if the command takes them."""
    if not isinstance(command, ParameterizedCommand):
        return {}
    from guanaco.parameters import parameters

    return {one.name: one.option for one in parameters()}


def _options() -> list[Any]:
    """Return the options as Typer makes them of a function that has one argument for each parameter."""
    from guanaco.parameters import parameters

    def collect(**_: Any) -> None: ...

    arguments = [
        inspect.Parameter(
            one.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_annotation(one)
        )
        for one in parameters()
    ]
    collect.__signature__ = inspect.Signature(arguments)  # type: ignore[attr-defined]
    collect.__annotations__ = {each.name: each.annotation for each in arguments}
    app = typer.Typer(add_completion=False)
    app.command()(collect)
    return list(typer.main.get_command(app).params)


def _annotation(one: ParameterInfo) -> Any:
    if one.is_list:
        help_ = rf"{_text(one)}; may be repeated. \n is a line's end, an empty one means none. {_default(one)}"
        return Annotated[list[str] | None, typer.Option(one.option, metavar="TEXT", help=help_)]
    help_ = f"{_text(one)}. {_default(one)}"
    metavar = "N" if one.field.annotation is int else "NUMBER"
    option = typer.Option(one.option, metavar=metavar, help=help_)
    return Annotated[one.field.annotation | None, option]  # type: ignore[operator]


def _text(one: ParameterInfo) -> str:
    return ". ".join(part.rstrip(".") for part in (one.range, one.field.description) if part)


def _default(one: ParameterInfo) -> str:
    default = one.field.get_default(call_default_factory=True)
    shown = " ".join(default).replace("\n", "\\n") if one.is_list else default
    return f"[default: {shown}]"


def _unescaped(words: list[str]) -> list[str]:
    return [word.replace("\\n", "\n").replace("\\t", "\t") for word in words if word]
