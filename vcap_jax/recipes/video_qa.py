"""Questions about videos, put to a served checkpoint by lmms-eval: MMVU, MLVU, VideoMMMU, LVBench.

What a kept harness does well is left to it: frames, prompts, data. It runs in an environment of its own (it brings
155 packages, PyTorch among them), against any OpenAI-compatible address, such as our exported checkpoint under vLLM.

OUT/video-qa/request.json   what was asked for; another request for the same folder is refused
OUT/video-qa/harness/       what the harness left; a complete run is not repeated
OUT/video-qa/harness.log    what it said
OUT/video-qa/items.jsonl    a line for each question
OUT/video-qa/results.json   the figures; once it is there the evaluation is complete
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from vcap_jax.captioning.settings import is_served
from vcap_jax.data.errors import ManifestError
from vcap_jax.evals.benchmarks.benchmark import read_options
from vcap_jax.evals.benchmarks.choices import READING
from vcap_jax.evals.benchmarks.lmms_eval import (
    BEGINS,
    SUITES,
    VERSION,
    HarnessRun,
    Request,
    Suite,
    VideoQaOptions,
    any_run,
    find_run,
    judge_failures,
    read_items,
    statistics,
    unread,
)
from vcap_jax.evals.benchmarks.results import ITEMS, REQUEST, RESULTS, results_row, told, write_results
from vcap_jax.evals.protocol import Evaluation, EvaluationFailed, EvaluatorError
from vcap_jax.evals.statistics import evaluated
from vcap_jax.recipes.evaluation_request import Say, remember
from vcap_jax.recipes.video_qa_servers import Servers, with_version
from vcap_jax.reward.config import JudgeConfig
from vcap_jax.system.file_locks import only_one
from vcap_jax.system.json_values import JsonDict, JsonError, JsonObject, JsonValue, read_json_object

NAME = "video-qa"

INSTALL = (
    "python3 -m venv lmms && lmms/bin/pip install torch==2.13.0 && lmms/bin/pip install "
    f"lmms-eval=={VERSION} decord==0.6.0"
)


@dataclass(frozen=True, kw_only=True)
class VideoQaRequest:
    """by: address of the served checkpoint. out: where results go. judge: reads the answers to MMVU's open questions;
    the harness asks its first address. served_model: the checkpoint's name at its address; None takes the only one.
    api_key_env: of that address. ready_timeout_s: how long it is waited for."""

    by: str
    out: Path
    options: Mapping[str, str | int | float | bool]
    judge: JudgeConfig = field(default_factory=JudgeConfig)
    served_model: str | None = None
    api_key_env: str | None = None
    ready_timeout_s: float = 600.0


def evaluate_video_qa(request: VideoQaRequest, say: Say) -> Path:
    """Has the harness put its questions, reads what it left, and writes the results; their folder.

    Raises ConfigError, EvaluatorError for what cannot be asked for and for a harness that left no results,
    JudgeUnavailable for an address that does not answer, and Stopped.
    """
    options = read_options(VideoQaOptions, request.options, NAME)
    if options.include is not None:
        options = replace(options, include=str(Path(options.include).absolute()))
    work = _Work(request=request, options=options, suites=chosen_suites(options), say=say)
    with only_one(work.folder, EvaluatorError, "name another --out"):
        work.do()
    return work.folder


@dataclass(frozen=True, kw_only=True)
class _Work:
    """An evaluation in a folder that is held."""

    request: VideoQaRequest
    options: VideoQaOptions
    suites: tuple[Suite, ...]
    say: Say

    @property
    def folder(self) -> Path:
        """Of the results."""
        return self.request.out / NAME

    def do(self) -> None:
        """See ``evaluate_video_qa``."""
        request, options, say = self.request, self.options, self.say
        if (self.folder / RESULTS).exists():
            self._done()
            return
        if not is_served(request.by):
            raise EvaluatorError(
                f"{NAME} asks a served model, and --by is {request.by}: serve the checkpoint (vllm serve FOLDER "
                f"--limit-mm-per-prompt '{{\"image\": {options.max_frames}}}') and give its address"
            )
        if any(suite.judged for suite in self.suites) and not request.judge.urls:
            raise EvaluatorError(
                "mmvu has open questions, which a judge reads: give its address with --judge"
            )
        python = harness_python(options.harness, say)
        data = Path(options.data).resolve()
        if options.offline and options.tasks is None:
            for suite in self.suites:
                if not (data / suite.folder).is_dir():
                    raise EvaluatorError(
                        f"{suite.name}: {data / suite.folder} does not exist: put the videos there, or let lmms-eval "
                        "download them with options.offline=false"
                    )
        servers = self._servers()
        key, keyless = servers.key()
        model, judge_model = servers.models(say)
        if len(request.judge.urls) > 1:
            say(f"{NAME}: lmms-eval asks one address of the judge, {request.judge.urls[0]}")
        asked = replace(self._asked(python, model), keyless=keyless)
        self._remember(asked, judge_model)
        log = self.folder / "harness.log"
        run = find_run(asked.output, asked.tasks)
        began = time.monotonic()
        if run is None:
            _perform(asked, _settings(options, data, servers.environment(key, judge_model)), log, say)
            run = find_run(asked.output, asked.tasks)
            if run is None:
                raise EvaluationFailed(_left_nothing(log, asked.tasks))
        else:
            say(f"{NAME}: the harness's results were there ({run.results})")
        if failed := judge_failures(log):
            raise EvaluationFailed(
                f"the judge did not answer {len(failed)} questions, which lmms-eval counts as wrong answers: there are "
                f"no figures. The first, in {log}: {failed[0][:300]} / Mend the judge, and move {asked.output} away to "
                "have everything asked again"
            )
        self._write(run, asked, judge_model, time.monotonic() - began)

    def _servers(self) -> Servers:
        request = self.request
        checkpoint = JudgeConfig(
            urls=(request.by,),
            model=request.served_model,
            api_key_env=request.api_key_env,
            ready_timeout_s=request.ready_timeout_s,
        )
        # Of several addresses the first is asked; without any nobody judges.
        judge = (
            replace(request.judge, urls=request.judge.urls[:1], store=None) if request.judge.urls else None
        )
        return Servers(captioner=checkpoint, judge=judge)

    def _done(self) -> None:
        """Reads anew what the harness left, if an earlier version's reader made the results that are there.

        Raises EvaluatorError if these are of another request, or of another model at the address. One that does not
        answer now is taken to be the one that did, and so is a judge."""
        request, results = self.request, self.folder / RESULTS
        noted = read_json_object(self.folder / REQUEST)
        model, judge_model = str(noted.get("model")), noted.get("judge_model")
        if is_served(request.by):
            now, judge_now = self._servers().models_now(self.say)
            model, judge_model = now or model, judge_now or (judge_model if request.judge.urls else None)
        asked = self._asked(self.options.harness, model)
        self._remember(asked, judge_model)
        if read_json_object(results).get("reading", 1) == READING:
            self.say(f"{NAME}: {results} was there")
            return
        earlier = f"{NAME}: {results} is by an earlier version, which read the answers otherwise"
        run = find_run(asked.output, asked.tasks)
        if run is None:
            raise EvaluatorError(f"{earlier}, and what the harness left is not there: name another --out")
        self.say(f"{earlier}: what the harness left is read anew")
        self._write(run, asked, judge_model, 0.0)

    def _asked(self, python: str, model: str) -> Request:
        asked = Request(
            options=self.options,
            python=python,
            model=model,
            url=with_version(self.request.by),
            tasks=tuple(task for suite in self.suites for task in suite.tasks),
            output=(self.folder / "harness").absolute(),
        )
        try:
            asked.command()
        except ValueError as error:
            raise EvaluatorError(f"{NAME}: {error}") from error
        return asked

    def _remember(self, asked: Request, judge_model: JsonValue) -> None:
        """Notes what the folder is for. Raises EvaluationRefused if it is for something else. One in which the harness
        has left nothing is for nothing yet: it keeps nothing of a run that it has not ended."""
        if not (self.folder / RESULTS).exists() and not any_run(asked.output):
            (self.folder / REQUEST).unlink(missing_ok=True)
        options = self.options
        row: JsonDict = {
            "model": asked.model,
            "url": asked.url,
            "tasks": list(asked.tasks),
            "concurrency": options.concurrency,
            "timeout_s": options.timeout_s,
            "fps": options.fps,
            "max_frames": options.max_frames,
            "max_pixels": options.max_pixels,
            "qwen3_vl": options.timestamps,
            "limit": options.limit,
            "max_new_tokens": options.max_new_tokens,
            "include": options.include,
            "judge": list(self.request.judge.urls),
            "judge_model": judge_model,
            "data": options.data,
        }
        remember(self.folder / REQUEST, row)

    def _write(self, run: HarnessRun, asked: Request, judge_model: JsonValue, seconds: float) -> None:
        try:
            found = {suite.name: read_items(run, suite) for suite in self.suites}
            figures = run.own_figures()
        except (OSError, JsonError, ManifestError) as error:
            raise EvaluatorError(f"what lmms-eval left cannot be read: {error}") from error
        items = tuple(item for several in found.values() for item in several)
        about: dict[str, JsonValue] = {
            "benchmark": NAME,
            "mode": "harness and parsed",
            "samples": len(items),
            "reading": READING,
            "harness": {"version": VERSION, "figures": figures, "command": shlex.join(asked.command())},
            "endpoints": {"judge": {"model": judge_model, "urls": list(self.request.judge.urls[:1])}},
            "questions": {
                suite.name: {
                    "published": suite.questions,
                    "read": len(found[suite.name]),
                    "failed": sum(item.failure is not None for item in found[suite.name]),
                    "no option read": sum(1 for _ in unread(found[suite.name])),
                }
                for suite in self.suites
            },
        }
        evaluation = Evaluation(metrics=evaluated(items, statistics(self.suites)), items=items, about=about)
        self.say(f"{NAME}:")
        told(evaluation, self.say)
        for suite in self.suites:
            if (count := len(found[suite.name])) != suite.questions:
                self.say(f"  {suite.name}: {count} questions, of {suite.questions} that are published")
        captioner: JsonObject = {"by": self.request.by, "model": asked.model}
        row = results_row(evaluation, (), captioner=captioner, seconds={"harness": seconds})
        write_results(self.folder, evaluation, row)
        self.say(f"{NAME}: {self.folder / RESULTS}, {self.folder / ITEMS}")


def chosen_suites(options: VideoQaOptions) -> tuple[Suite, ...]:
    """The suites that are asked for. Raises EvaluatorError for names that are none."""
    names = tuple(dict.fromkeys(name.strip() for name in options.suites.split(",") if name.strip()))
    if unknown := [name for name in names if name not in SUITES]:
        raise EvaluatorError(f"options.suites: {unknown[0]!r} is none of {', '.join(SUITES)}")
    if options.tasks is None:
        return tuple(SUITES[name] for name in names)
    if len(names) != 1:
        raise EvaluatorError("options.tasks stands for one suite's: name that one in options.suites")
    own = tuple(task.strip() for task in options.tasks.split(",") if task.strip())
    return (replace(SUITES[names[0]], tasks=own),)


def harness_python(name: str, say: Say) -> str:
    """The Python that has the harness. Raises EvaluatorError, with the command that installs it."""
    python = shutil.which(name)
    ask = "import importlib.metadata as packages; print(packages.version('lmms-eval'))"
    found = None if python is None else subprocess.run([python, "-c", ask], capture_output=True, text=True)
    if python is None or found is None or found.returncode:
        raise EvaluatorError(
            f"lmms-eval is not installed in {name}. Give it an environment of its own: {INSTALL}, and name its Python "
            "with options.harness=lmms/bin/python"
        )
    version = found.stdout.split()[0]
    if version != VERSION:
        say(f"{NAME}: lmms-eval {version}; what it leaves was read with {VERSION}")
    return str(Path(python).absolute())


def _settings(options: VideoQaOptions, data: Path, environment: Mapping[str, str]) -> Mapping[str, str]:
    own = {"HF_HOME": str(data), "LMMS_IMAGE_ENCODE_FORMAT": "JPEG", "PYTHONUNBUFFERED": "1"}
    if options.offline:
        own |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    return {**environment, **own}


def _perform(asked: Request, environment: Mapping[str, str], log: Path, say: Say) -> None:
    command = asked.command()
    say(f"{NAME}: {shlex.join(command)}")
    say(f"{NAME}: what it says goes to {log}")
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as out:
        out.write(f"{BEGINS}{shlex.join(command)}\n".encode())
        out.flush()
        process = subprocess.Popen(
            command, env=dict(environment), stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
        )
        try:
            status = process.wait()
        except BaseException:  # a signal: the harness keeps nothing of a run that it has not ended
            process.terminate()
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
            raise
    say(f"{NAME}: lmms-eval ended with status {status}")


def _left_nothing(log: Path, tasks: Sequence[str]) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
    said = " / ".join(line.strip() for line in lines[-3:] if line.strip())
    return (
        f"lmms-eval left no results of {', '.join(tasks)} (its exit status is 0 after failures, too). Its last words, "
        f"in {log}: {said[-600:] or 'none'}"
    )
