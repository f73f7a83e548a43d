"""Help as plain text under headings: quick to print, easy to read anywhere, fit to paste into the docs."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


class HeadedCommand(TyperCommand):
    """Lists options under the heading each one names (`rich_help_panel`), in the order they were declared."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        _write_options(self, ctx, formatter)


class HeadedGroup(TyperGroup):
    """A command with commands below it that also does something by itself; options as in `HeadedCommand`."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        _write_options(self, ctx, formatter)
        self.format_commands(ctx, formatter)


def _write_options(command: Any, ctx: Any, formatter: Any) -> None:
    sections: dict[str, list[tuple[str, str]]] = {}
    for parameter in command.get_params(ctx):
        record = parameter.get_help_record(ctx)
        if record is not None:
            default = "Arguments" if parameter.param_type_name == "argument" else "Other"
            heading = getattr(parameter, "rich_help_panel", None) or default
            sections.setdefault(heading, []).append(record)
    if "Other" in sections:  # --help itself comes last
        sections["Other"] = sections.pop("Other")
    for heading, records in sections.items():
        with formatter.section(heading):
            formatter.write_dl(records)
