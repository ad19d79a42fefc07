"""README.md of an exported folder: what the model is, how it was made and how it is used, with Hugging Face's metadata.

A card may be published, so it names folders and files by their last name alone (see ``run_facts``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import yaml

from vcap_jax import __version__
from vcap_jax.export.run_facts import RunFacts, public_text, run_facts, settings
from vcap_jax.models.family import ModelFamily
from vcap_jax.models.lora import LoraConfig
from vcap_jax.report.run_folder import RunFolder
from vcap_jax.run.checkpoint_source import CheckpointSource, TrainedRun, export_command, under_adapters
from vcap_jax.run.config import RunConfig
from vcap_jax.run.model_loading import PARAMS_FOLDER
from vcap_jax.system.files import replace_file
from vcap_jax.system.json_values import JsonObject, as_list, as_number
from vcap_jax.world.backbone import BACKBONE_FOLDER

CARD = "README.md"

_LICENCE_KEYS = ("license", "license_name", "license_link")
_EMBEDDED = "the tiny backbone of VCap-JAX's embedded world"
_FIGURES = {
    "reward/mean": ("reward, mean", ".3f"),
    "kl": ("KL to the reference policy", ".4f"),
    "facts/coverage": ("facts covered", ".1%"),
    "facts/hallucination": ("false claims", ".1%"),
    "nll": ("negative log-likelihood of a token", ".3f"),
    "length/mean": ("tokens of a caption", ".1f"),
}
_HELD_OUT = {"references": "references", "start": "starting policy", "trained": "this model"}


def write_model_card(
    folder: Path,
    *,
    family: ModelFamily,
    base: Path,
    runs: Sequence[TrainedRun] = (),
    dtype: str,
    adapter: bool = False,
) -> None:
    """Writes README.md into an exported folder.

    family: of the model.
    base: the checkpoint folder at the beginning; ``folder`` itself for a model that was made there. runs: that trained
    it, the last first, with its step; none for a checkpoint that is only in another format. dtype: of the stored
    tensors. adapter: the folder holds LoRA adapters alone.
    """
    facts = run_facts(RunFolder(runs[0].source.folder), runs[0].source.step) if runs else None
    name, licence = base_name(base), _licence(base)
    full = _to_be_exported(base, runs) if adapter else None
    # Adapters on what a run has trained fit nothing that has an id, and nothing else loads an Orbax folder.
    known = name if runs and full is None else None
    parts = [_front_matter(facts, family, known, licence, adapter=adapter)]
    if facts is None:
        done = "made" if base == folder else f"converted from the checkpoint `{_code(base.absolute().name)}`"
        parts += [f"# {_code(folder.absolute().name)}"]
        parts += [f"A {family.name} captioner in {dtype}, {done} by VCap-JAX {__version__}."]
    else:
        parts += [*_of_a_run(facts, runs, name, dtype, adapter=adapter)]
    if full is not None:
        named = replace(full, path=_code(full.folder.absolute().name))
        what = f"`{named.path}` at step {named.step}, not what that started from,"
        parts.append(
            f"The base is {what if named.run else f'the Orbax folder `{named.path}`'} and must first be exported, "
            f"whole: `{export_command(named)}`. That FOLDER is the BASE below."
        )
    if adapter:
        parts.append(
            "`adapter_config.json` names the base by where it lay: write its id there before you publish this folder."
        )
    if not licence:
        parts.append(
            "The licence is not known here: write `license` into the lines above before you publish this folder."
        )
    parts += [
        "## Use",
        _use(None if facts is None else facts.config, folder.absolute().name, known, adapter=adapter),
    ]
    if facts is not None:
        parts += ["## Make it again", _again(facts, adapter=adapter)]
    replace_file(folder / CARD, ("\n\n".join(parts) + "\n").encode())


def _to_be_exported(base: Path, runs: Sequence[TrainedRun]) -> CheckpointSource | None:
    """What adapters lie on where that is no folder that PEFT's user loads."""
    if (full := under_adapters(runs)) is None and (base / PARAMS_FOLDER).is_dir():
        return CheckpointSource(path=str(base), folder=base, run=False)
    return full


def base_name(folder: Path) -> str | None:
    """What others know a checkpoint folder by: the model's id where it lies in Hugging Face's cache, else its last
    name; None for the tiny backbone of the embedded world, which comes with this package."""
    if folder.resolve() == BACKBONE_FOLDER.resolve():
        return None
    for part in folder.absolute().parts:
        if found := re.fullmatch(r"models--(.+?)--(.+)", part):
            return f"{found[1]}/{found[2]}"
    return folder.absolute().name


def _licence(base: Path) -> Mapping[str, object]:
    """As the base's own card states it; that of this package for its backbone."""
    if base.resolve() == BACKBONE_FOLDER.resolve():
        return {"license": "apache-2.0"}
    card = base / CARD
    text = card.read_text(encoding="utf-8", errors="replace") if card.is_file() else ""
    found = re.match(r"---\s*\n(.*?)\n---", text, re.DOTALL)
    try:
        values = yaml.safe_load(found[1]) if found else {}
    except yaml.YAMLError:
        values = {}
    return {key: values[key] for key in _LICENCE_KEYS if key in values} if isinstance(values, dict) else {}


def _front_matter(
    facts: RunFacts | None,
    family: ModelFamily,
    base: str | None,
    licence: Mapping[str, object],
    *,
    adapter: bool,
) -> str:
    values: dict[str, object] = {"library_name": "peft" if adapter else "transformers", **licence}
    if base is not None:
        values |= {"base_model": base, "base_model_relation": "adapter" if adapter else "finetune"}
    values["pipeline_tag"] = "image-text-to-text"
    tags = ["vcap-jax", family.model_type]
    if facts is not None:
        tags += [
            f"{facts.config.modality}-captioning",
            "sft" if facts.supervised else "reinforcement-learning",
        ]
        tags += ["lora"] if facts.config.model.lora is not None else []
    values["tags"] = tags
    return f"---\n{yaml.safe_dump(values, sort_keys=False, allow_unicode=True)}---"


def _of_a_run(
    facts: RunFacts, runs: Sequence[TrainedRun], base: str | None, dtype: str, *, adapter: bool
) -> list[str]:
    config = facts.config
    way = "on captions" if facts.supervised else "by reinforcement learning"
    what = "LoRA adapters for a captioner" if adapter else "A captioner"
    before = [f"`{_code(run.source.folder.absolute().name)}` at step {run.source.step}" for run in runs[1:]]
    started = f"`{_code(base)}`" if base else _EMBEDDED
    rows = {
        "base": " from ".join([*before, started]),
        "trained": _trained(config.model.lora, config.model.frozen),
        **facts.made_of,
        "step": f"{facts.step} of {facts.total}" if facts.total else str(facts.step),
        "tensors": dtype,
        "made by": f"VCap-JAX {__version__}",
    }
    parts = [
        f"# {_code(config.name)}",
        f"{what} of {config.modality}s, trained {way}.",
        _table(["", ""], [[heading, text] for heading, text in rows.items()]),
    ]
    if facts.warning is not None:
        parts.append(f"> **{facts.warning}**")
    if facts.figures is not None and facts.first is not None:
        pairs = [
            [words, format(facts.first[key], style), format(facts.figures[key], style)]
            for key, (words, style) in _FIGURES.items()
            if key in facts.first and key in facts.figures
        ]
        parts += ["## Figures", _table(["", f"step {facts.first['step']}", f"step {facts.step}"], pairs)]
    if facts.heldout:
        shares = [
            [_HELD_OUT.get(name, name), _share(row, "coverage"), _share(row, "hallucination")]
            for name, row in facts.heldout.items()
        ]
        parts += [
            "On held-out scenes, with 95% bootstrap intervals over scenes:",
            _table(["", "facts covered", "false claims"], shares),
        ]
    return parts


def _trained(lora: LoraConfig | None, frozen: Sequence[str]) -> str:
    if lora is not None:
        return f"LoRA adapters of rank {lora.rank} on {', '.join(lora.targets)}"
    return f"all parameters but {', '.join(f'`{name}`' for name in frozen)}" if frozen else "all parameters"


def _share(row: JsonObject, name: str) -> str:
    value, bounds = row.get(name), as_list(row.get(f"{name}_interval") or [None], name)
    if value is None or None in bounds:
        return "nothing claimed"
    share, low, high = (as_number(number, name) for number in (value, *bounds))
    return f"{share:.1%} ({low:.1%} to {high:.1%})"


def _use(config: RunConfig | None, folder: str, base: str | None, *, adapter: bool) -> str:
    """Lines of Python that caption one file."""
    kind, prompt, tokens = "image", "Describe this image in detail.", 512
    if config is not None:
        kind, tokens = config.modality, config.rollout.max_completion_length
        prompt = config.data.image_prompt if kind == "image" else config.data.video_prompt
    lines = ["from transformers import AutoModelForImageTextToText, AutoProcessor", ""]
    if adapter:
        lines = [
            "from peft import PeftModel",
            *lines,
            f'base = "{base or "BASE"}"  # a folder or an id: see above',
        ]
        lines += [
            'model = AutoModelForImageTextToText.from_pretrained(base, dtype="auto", device_map="auto")',
            f'model = PeftModel.from_pretrained(model, "{_code(folder)}")',
            "processor = AutoProcessor.from_pretrained(base)",
        ]
    else:
        lines += [
            f'folder = "{_code(folder)}"',
            'model = AutoModelForImageTextToText.from_pretrained(folder, dtype="auto", device_map="auto")',
            "processor = AutoProcessor.from_pretrained(folder)",
        ]
    example = "photo.jpg" if kind == "image" else "clip.mp4"
    lines += [
        f'picture = {{"type": "{kind}", "path": "{example}"}}',
        f'request = {{"type": "text", "text": {json.dumps(prompt, ensure_ascii=False)}}}',
        "inputs = processor.apply_chat_template(",
        '    [{"role": "user", "content": [picture, request]}],',
        '    add_generation_prompt=True, tokenize=True, return_dict=True, return_tensors="pt",',
        ").to(model.device)",
        f"tokens = model.generate(**inputs, max_new_tokens={tokens}, do_sample=False)",
        'print(processor.batch_decode(tokens[:, inputs["input_ids"].shape[1]:], skip_special_tokens=True)[0])',
    ]
    return "\n".join(["```python", *lines, "```"])


def _again(facts: RunFacts, *, adapter: bool) -> str:
    command = "launch/sft.py" if facts.supervised else "launch/train.py"
    export = f"python launch/convert.py to-hf RUN FOLDER --step {facts.step}{' --adapter' if adapter else ''}"
    text = yaml.safe_dump(settings(facts.config), sort_keys=False, allow_unicode=True, width=100)
    return "\n".join(
        [
            "With VCap-JAX and these settings in `run.yaml` (paths and addresses are yours to put back):",
            "",
            "```bash",
            f"python {command} --config run.yaml --run-dir RUN",
            export,
            "```",
            "",
            "```yaml",
            f"{text.rstrip()}",
            "```",
        ]
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cells = [list(head), ["---"] * len(head), *([_cell(text) for text in row] for row in rows)]
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def _code(text: str) -> str:
    """A name for a heading or between backticks."""
    return re.sub(r"[\s`|\"<>\\]+", " ", public_text(text)).strip()
