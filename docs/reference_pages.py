"""MkDocs hook: pages generated at each build from the command line, the config schemas, the tensor contract, the
metrics and the notebook."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import typer.main
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from pipeline.cli.app import PANELS, build_app
from pipeline.config.schema import ModelConfig, ProfileConfig
from pipeline.repository import extra_tensors
from pipeline.repository.contract import Tensor, model_contract
from pipeline.triton_models import metrics

DOCS = Path(__file__).parent


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages, and the decisions to the navigation."""
    pages = {
        "cli": cli_page(),
        "configuration": configuration_page(),
        "tensors": tensors_page(),
        "metrics": metrics_page(),
    }
    for name, text in pages.items():
        files.append(File.generated(config, f"reference/{name}.md", content=text))
    files.append(File.generated(config, "notebook.md", content=notebook_page(DOCS / "notebook.ipynb")))
    return files


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """List the decisions below "Explanation", so that a new one needs no entry in mkdocs.yml."""
    decisions = sorted(path.relative_to(DOCS).as_posix() for path in (DOCS / "decisions").glob("*.md"))
    assert config.nav is not None
    sections = next(entry["Explanation"] for entry in config.nav if "Explanation" in entry)
    sections.append({"Decisions": decisions})
    return config


def notebook_page(path: Path) -> str:
    """The cells of a notebook with their stored outputs."""
    parts = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "markdown":
            parts.append(cell["source"])
            continue
        parts.append(f"```python\n{cell['source']}\n```")
        printed = "".join(output.get("text") or output["data"]["text/plain"] for output in cell["outputs"])
        parts.append(f"```text\n{printed.rstrip()}\n```")
    return "\n\n".join(parts) + "\n"


def cli_page() -> str:
    """Page with a section per command, in the order of `lookahead --help`."""
    command = typer.main.get_command(build_app())
    lines = [
        "# Command line",
        "",
        "Exit codes: 0 success; 1 a failed check of verify, bench --grammar, load, batch or validate-gpu, or an "
        "internal error (with a trace); 2 user error; 129 SIGHUP (a closed terminal); 130 Ctrl-C; 141 closed standard "
        "output; 143 SIGTERM.",
        "",
    ]
    lines += ["`lookahead --install-completion` installs completion for the current shell.", ""]
    for panel, verbs in {**PANELS, "Research": ("research",)}.items():
        lines += [f"## {panel}", ""]
        for verb in verbs:
            found = getattr(command, "commands", {}).get(verb)
            if found is not None:
                lines += [line for section in command_sections(f"lookahead {verb}", found) for line in section]
    return "\n".join(lines)


def command_sections(name: str, command: click.Command) -> Iterator[list[str]]:
    """Sections of a command, or of its subcommands."""
    below = getattr(command, "commands", None)
    if below:
        for verb, each in sorted(below.items()):
            yield from command_sections(f"{name} {verb}", each)
        return
    lines = [f"### `{name}`", "", (command.help or "").strip(), ""]
    options = [parameter for parameter in command.params if parameter.name != "help"]
    if options:
        lines += ["| option | default | meaning |", "| --- | --- | --- |"]
        for option in options:
            meaning = cell(getattr(option, "help", None) or "")
            lines.append(f"| {names_of(option)} | {default_of(option)} | {meaning} |")
    yield [*lines, ""]


def default_of(option: click.Parameter) -> str:
    """An option's default; empty for switches, and where the help text explains it."""
    value = option.default
    return f"`{value}`" if type(value) in (str, int, float) and value != "" else ""


def names_of(option: click.Parameter) -> str:
    """The spellings of an option, or the name of an argument."""
    if option.param_type_name == "argument":
        return f"`{(option.name or '').upper()}`"
    return ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))


def configuration_page() -> str:
    """One table per section of a profile and of a model."""
    lines = [
        "# Configuration",
        "",
        "A profile is a file in `configs/profiles/`, a model one in `configs/models/`. `--set key=value` overrides a "
        "key for one command. There, keys of a model begin with `model.`.",
    ]
    for title, schema in (("Profile", ProfileConfig.model_json_schema()), ("Model", ModelConfig.model_json_schema())):
        lines += ["", f"## {title}", ""]
        lines += schema_tables(schema, schema.get("$defs", {}))
    return "\n".join(lines) + "\n"


def schema_tables(schema: dict[str, Any], definitions: dict[str, Any]) -> Iterator[str]:
    """Table of a schema's own keys, then a table per section, headed by its key."""
    keys = section_keys(schema, definitions, "")
    yield from schema_table(schema, keys)
    for name, key in keys.items():
        part = definitions[name]
        yield from ("", f"### {key} {{ #{name.lower()} }}", "", part.get("description", ""), "")
        yield from schema_table(part, keys)


def section_keys(schema: dict[str, Any], definitions: dict[str, Any], above: str) -> dict[str, str]:
    """The keys of the sections below a schema, by the name of their definition; of a list with the kind of the item."""
    found = {}
    for key, entry in schema.get("properties", {}).items():
        for name in re.findall(r"#/\$defs/(\w+)", json.dumps(entry)):
            part = definitions[name]
            if "properties" not in part or name in found:
                continue
            kinds = [part["properties"][word].get("const") for word in ("kind", "source") if word in part["properties"]]
            found[name] = f"{above}{key}" + "".join(f": {kind}" for kind in kinds if kind)
            found |= section_keys(part, definitions, f"{above}{key}.")
    return found


def schema_table(schema: dict[str, Any], keys: dict[str, str]) -> Iterator[str]:
    """Table of a schema's keys. keys: see `section_keys`."""
    yield from ("| key | type | default | meaning |", "| --- | --- | --- | --- |")
    for key, entry in schema.get("properties", {}).items():
        # The parts of a section have their own tables.
        plain = "default" in entry and not isinstance(entry["default"], dict | list)
        default = f"`{json.dumps(entry['default'])}`" if plain else ""
        kind = type_of(entry, keys) + bounds_of(entry)
        yield f"| `{key}` | {cell(kind)} | {cell(default)} | {cell(entry.get('description', ''))} |"


def bounds_of(entry: dict[str, Any]) -> str:
    """Limits of a number, such as ", 1 to 64"; empty if it has none."""
    numbers = [entry, *entry.get("anyOf", [])]
    least, most, above = (
        next((each[word] for each in numbers if word in each), None)
        for word in ("minimum", "maximum", "exclusiveMinimum")
    )
    if least is not None:
        return f", {least} to {most}" if most is not None else f", {least} or more"
    lower = "" if above is None else f", above {above}"
    return lower if most is None else f"{lower}, up to {most}"


def type_of(entry: dict[str, Any], keys: dict[str, str]) -> str:
    """A schema entry's type in words; sections by a link to their table."""
    if "$ref" in entry:
        name = str(entry["$ref"]).rsplit("/", 1)[-1]
        kind = keys[name].rpartition(": ")[2]
        return f"[{kind}](#{name.lower()})"
    if "enum" in entry:
        return ", ".join(map(str, entry["enum"]))
    if "const" in entry:
        return str(entry["const"])
    for alternatives in ("anyOf", "oneOf"):
        if alternatives in entry:
            return " or ".join(type_of(each, keys) for each in entry[alternatives])
    if entry.get("type") == "array":
        return f"list of {type_of(entry.get('items', {}), keys)}"
    return str(entry.get("type", "any"))


def tensors_page() -> str:
    """Inputs and outputs of each served model."""
    lines = [
        "# Tensors",
        "",
        "Names, types and shapes (without the batch axis; -1 varies) of the served models. `lookahead_bls`, and all "
        "models with the torch engine, refuse images, LoRA weights, prompt embeddings, encoder inputs, draft logits "
        "and more than one beam.",
        "",
    ]
    ours = {
        "lookahead_bls": (extra_tensors.LOOKAHEAD_BLS_INPUTS, extra_tensors.LOOKAHEAD_BLS_OUTPUTS),
        "tensorrt_llm": (extra_tensors.TENSORRT_LLM_INPUTS, extra_tensors.TENSORRT_LLM_OUTPUTS),
    }
    for model, (inputs, outputs) in ours.items():
        known = meanings(model)
        lines += [f"## Additional: `{model}`", "", "Optional tensors beyond TensorRT-LLM's.", ""]
        lines += [*tensor_table("input", inputs, known), "", *tensor_table("output", outputs, known), ""]
    for model in ("tensorrt_llm_bls", "ensemble", "preprocessing", "tensorrt_llm", "postprocessing"):
        contract = model_contract(model)
        lines += [f"## TensorRT-LLM's: `{model}`", ""]
        lines += [*tensor_table("input", contract.inputs), "", *tensor_table("output", contract.outputs), ""]
    return "\n".join(lines)


def metrics_page() -> str:
    """Metrics of our models on Triton's metrics port."""
    lines = [
        "# Metrics",
        "",
        "Served at `server.metrics_port` beside Triton's own (`nv_...`). With several replicas the label `replica` is "
        "the number of the server. [Operate](../how-to/operate.md#do-drafts-help) explains how to read them.",
    ]
    for title, families in (("lookahead_bls", metrics.BLS_METRICS), ("Torch engine", metrics.ENGINE_METRICS)):
        lines += ["", f"## {title}", "", "| metric | kind | meaning |", "| --- | --- | --- |"]
        lines += [f"| `lookahead_{name}` | {kind.lower()} | {cell(text)} |" for name, (kind, text) in families.items()]
    return "\n".join(lines) + "\n"


def meanings(model: str) -> dict[str, str]:
    """The comments above our tensors of a model in the source of `extra_tensors`, by the name of the tensor."""
    text = inspect.getsource(extra_tensors)
    found = re.findall(rf"^(?:_LOG_PROB|{model.upper()})_\w+ = \(\n(.*?)^\)", text, re.MULTILINE | re.DOTALL)
    pairs = re.findall(r'((?: {4}#.*\n)+) {4}(?:_input|Tensor)\("(\w+)"', "".join(found))
    return {name: re.sub(r"\s*# ", " ", comment).strip() for comment, name in pairs}


def tensor_table(kind: str, tensors: tuple[Tensor, ...], known: dict[str, str] | None = None) -> Iterator[str]:
    """Table of inputs or outputs. known: meanings by name; without them the table shows which are optional."""
    yield from (f"| {kind} | type | shape | {'meaning' if known else 'optional'} |", "| --- | --- | --- | --- |")
    for tensor in tensors:
        last = cell(known[tensor.name]) if known else "yes" if tensor.optional else ""
        yield f"| `{tensor.name}` | {tensor.dtype.removeprefix('TYPE_')} | {list(tensor.dims)} | {last} |"


def cell(text: str) -> str:
    """Text for a cell of a Markdown table."""
    return " ".join(text.split()).replace("|", "\\|")
