"""Figures in the documents are those of the committed results: of the studies and of the plans."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.plans import summary
from vcap_jax.studies import estimates
from vcap_jax.studies.collect import by_row
from vcap_jax.studies.results import LEVEL, read_results
from vcap_jax.studies.tasks import plan as plan_of
from vcap_jax.world.dataset import sample_scene
from vcap_jax.world.facts import scene_facts
from vcap_jax.world.slots import object_of

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
ROWS = {  # what a row of the page is called in the report
    "base": "base",
    "references by the base": "references",
    "e1": "e1",
    "e2, references by e1": "e2",
    "e3, references by e2": "e3",
    "e1 with references drawn greedily": "greedy_witness",
    "e1 with references at temperature 1.5": "hot_witness",
    "e1 with references cut to 1 sentence": "cut_1",
    "imitation (CIDEr-D)": "imitation",
    "VQA": "vqa",
    "a judge without references": "judge",
    "claim differences (ClaimDiff-RL)": "claim_differences",
    "precision, recall and text (BalCapRL)": "balanced",
    "scores drawn at random": "random",
    "e1 without the picture": "no_image",
    "e1 without the reference": "no_reference",
    "e1 without Correctness": "no_correctness",
    "e1 without Completeness": "no_completeness",
    "e1 without Text Quality": "no_text_quality",
    "e1 without the local term": "no_local",
    "e1, the judge misses 20% and invents 10%": "noise_20",
    "a judge without references that errs as often": "judge_noise_20",
    "student of the base, best of 8": "from_self",
    "student of e2, best of 8": "from_e2",
}


def read(page):
    return (ROOT / page).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def known():
    return read_results([DOCS / "reproduction/results.jsonl"])[0]


@pytest.fixture(scope="module")
def report():
    return json.loads(read("docs/reproduction/report.json"))


def told(interval):
    return "{:.1f}% ({:.1f} to {:.1f})".format(*(100 * interval[key] for key in ("value", "low", "high")))


@pytest.mark.parametrize("modality", ["image", "video"])
def test_the_table_of_what_came_out_has_the_figures_of_the_report(report, modality):
    cells = {
        row["name"]: row["cells"]
        for table in report["tables"]
        if table["modality"] == modality
        for row in table["rows"]
        if "coverage" in row["cells"]
    }
    page = read("docs/reproduction.md")
    body = page.partition(f"| held-out {modality}s, 95% intervals ")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in body.splitlines()[2:]]
    assert len(rows) >= 15
    for label, coverage, false_claims in rows:
        found = re.fullmatch(r"(.*?)(?: \((\d+)(?: seeds)?\))?", label.replace("**", ""))
        of = cells[ROWS[found[1]]]
        assert [coverage, false_claims] == [told(of["coverage"]), told(of["false_claims"])], label
        assert len(of["coverage"]["by_seed"]) == int(found[2] or 5), label


def test_one_object_of_each_shot_is_so_much_of_a_clip():
    told = everything = 0
    for number in range(256):
        facts = scene_facts(sample_scene("video", 0, number, "heldout"))
        owners = {}
        for slot in facts:
            if slot[-1] in ("shape", "colour", "size", "motion"):
                owners.setdefault(slot[0], Counter())[object_of(slot)] += 1
        told += sum(max(owned.values()) for owned in owners.values())
        told += sum(slot[-1] in ("background", "shots", "cut 1") for slot in facts)
        everything += len(facts)
    assert f"has {told / everything:.0%} of a clip's facts" in read("docs/science.md")


def test_what_paid_is_told_as_it_was_counted():
    counted = json.loads(read("docs/reproduction/what_pays.json"))
    second = {run: rows["two in a segment"] for run, rows in counted.items()}
    page = " ".join(read("docs/science.md").split())
    first = [second[run][0] for run in ("twelve", "four-0", "four-1", "four-2")]
    shares, paid = ([one[key] for one in first] for key in ("share", "advantage"))
    assert f"{100 * min(shares):.0f} to {max(shares):.0%} of the captions tell of two objects" in page
    assert f"{max(paid):.2f} to {min(paid):.2f} in the mean" in page
    assert max(second[run][-1]["share"] for run in ("twelve", "four-0", "four-1", "four-2")) < 0.02
    after = second["after-claims-0"]
    assert f"rise from {after[0]['share']:.0%} to {after[-1]['share']:.0%}" in page
    for run in ("claims-0", "claims-2"):
        assert second[run][0]["share"] == pytest.approx(0.1, abs=0.01)
        assert second[run][1]["advantage"] > 0.1
        assert second[run][-1]["share"] == pytest.approx(2 / 3, abs=0.03)
    assert second["claims-1"][-1]["share"] < 0.01
    more = [[second[f"more-{seed}"][place]["share"] for place in (0, -1)] for seed in range(3)]
    told = "from {:.0%} and {:.0%} in the first fifth of 120 steps to {:.0%} and {:.0%} in the last"
    assert told.format(more[0][0], more[1][0], more[0][1], more[1][1]) in page
    assert "they fall from {:.0%} to {:.0%}".format(*more[2]) in page
    first, last = ([second[f"five-{seed}"][place]["share"] for seed in range(3)] for place in (0, -1))
    told = "in all three seeds, from {:.0%}, {:.0%} and {:.0%} to {:.0%}, {:.0%} and {:.0%}"
    assert told.format(*first, *last) in page
    events = [counted[f"five-{seed}"]["event"][0] for seed in range(3)]
    shares, paid = ([one[key] for one in events] for key in ("share", "advantage"))
    assert f"{100 * min(shares):.0f} to {max(shares):.0%} of the captions tell of an event" in page
    assert f"their mean advantage is {min(paid):.2f} to {max(paid):.2f}." in page


def test_how_the_camera_came_to_be_told_is_as_it_was_counted():
    counted = json.loads(read("docs/reproduction/what_pays.json"))
    page = " ".join(read("docs/science.md").split())
    first, longer = counted["camera-0"], counted["longer-0"]
    begin, end = first["camera"][0], first["camera"][-1]
    assert f"{begin['share']:.0%} of the captions tell of it, and half of that is right" in page
    assert begin["true"] == pytest.approx(0.5, abs=0.01)
    assert f"in the last fifth {end['share']:.0%} do." in page
    for key, told in (
        ("share", "{}%, {}%, {}%, {}% and {}% do,"),
        ("true", "{}%, {}%, {}%, {}% and {}% of that is right."),
    ):
        assert told.format(*(round(100 * one[key]) for one in longer["camera"])) in page
    probed = json.loads(read("docs/reproduction/probe_camera.json"))
    for name, row in (("more", "240 steps | 51.9% | 19.6%"), ("longer", "400 more | 60.3% | 15.8%")):
        assert f"{row} | {probed[name]['sampled']['mention_rates']['camera']:.0%} |" in page
    right = probed["right"]
    assert f"60.4% | 12.2% | {right['sampled']['mention_rates']['camera']:.0%} |" in page
    greedy = right["greedy"]
    assert f"cover {greedy['coverage']:.1%} with {greedy['false_share']:.1%}." in page
    assert greedy["mention_rates"]["shots"] == 1, "a caption that is whole ends with them"
    event = first["event"][0]
    assert f"{event['share']:.0%} of the captions tell of an event, and {event['true']:.0%} of these" in page
    assert all(one["share"] < 0.02 for one in [*first["event"][1:], *longer["event"]])
    for run in (first, longer):
        assert all(one["true"] == pytest.approx(0.5, abs=0.025) for one in run["shots"])


def test_verdicts_are_counted_as_the_report_has_them(report):
    verdicts = Counter((c["claim"]["source"], c["claim"]["modality"], c["verdict"]) for c in report["claims"])

    def counts(*sources_and_modalities):
        return [
            sum(verdicts[(*one, verdict)] for one in sources_and_modalities)
            for verdict in ("holds", "does not", "cannot tell")
        ]

    page = read("docs/reproduction.md")
    for source, whose in (("paper", "the paper's claims about"), ("ours", "our own (?:questions )?about")):
        for modality in ("image", "video"):
            (row,) = re.findall(rf"^\| {whose} {modality}s \| (\d+) \| (\d+) \| (\d+) \|$", page, re.M)
            assert [int(count) for count in row] == counts((source, modality)), row
    holds, does_not, open_ = counts(("paper", "image"), ("paper", "video"))
    words = " ".join(read("README.md").split())
    assert f"{holds} of the {holds + does_not + open_} claims hold here, {does_not} do not, {open_}" in words


def test_the_page_says_how_many_runs_the_results_are_of_and_how_long_they_took(report):
    page = " ".join(read("docs/reproduction.md").split())
    runs = read("docs/reproduction/results.jsonl").splitlines()
    assert f"is of {len(runs)} runs" in page
    took = [json.loads(run) for run in runs]
    minutes = [
        sum(run["seconds"] for run in took if run["task"].startswith(modality)) / 120
        for modality in ("image", "video")
    ]
    assert "two at a time on two cores: {:.0f} and {:.0f} minutes in all".format(*minutes) in page


def plan(name):
    return json.loads(read(f"docs/plans/{name}.json"))


def test_the_list_of_plans_is_what_the_command_writes_of_them():
    assert read("docs/plans/README.md") == summary()


def test_the_page_of_the_node_has_the_seconds_and_bytes_of_the_plans():
    row = re.compile(r"\[\w+\]\(plans/([\w-]+)\.md\) \| ([\d.]+) of ([\d.]+) \| ([\w ]+) \| (\d+) \|$", re.M)
    rows = row.findall(read("docs/gpu_node.md"))
    assert len(rows) == 8
    for name, peak, usable, program, seconds in rows:
        of = plan(name)
        worst = max(of["programs"], key=lambda one: one["peak"])["name"]
        figures = [
            f"{of['peak'] / 2**30:.1f}",
            f"{of['capacity'] / 2**30:.1f}",
            worst,
            f"{of['step_seconds']:.0f}",
        ]
        assert [peak, usable, program, seconds] == figures, name


def test_the_page_of_speed_has_the_seconds_of_the_plans():
    page = read("docs/performance.md")
    body = page.partition("| | groups at once on a GPU | a step |")[2].partition("\n\n")[0]
    rows = [[cell.strip(" *") for cell in line.strip("|").split("|")] for line in body.splitlines()[2:]]
    names = ["image-6xh800", "image-6xh800-offload", "image-8xh800", "video-6xh800", "video-6xh800-offload"]
    names += ["video-8xh800", "video-8xh800-short", "image-v5p-16", "image-v5p-16-tensor"]
    names += ["video-v5p-16", "video-v5p-16-tensor"]
    for name, (_, _, *seconds, _) in zip(names, rows, strict=True):
        of = plan(name)
        decoding = [one for one in of["programs"] if one["name"].startswith("decode")]
        largest = sum(one["runs"] * max(one["seconds"].values()) for one in decoding)
        with_largest = of["step_seconds"] - of["estimates"]["decoding"]["longest"]["seconds"] + largest
        figures = [of["step_seconds"], of["floor_seconds"], of["usual_seconds"], with_largest]
        assert seconds == [f"{figure:.0f}" for figure in figures], name


def test_the_pages_have_what_the_gpu_measured():
    of = json.loads(read("docs/gpu/h200.json"))
    run = of["step"]["runs"][-1]
    assert not any(run["compiles"])

    def seconds(part):
        (took,) = run[f"{part}_seconds"]
        return took

    token = of["decode_since"]
    page = read("docs/performance.md")
    body = page.partition("| | took | at the roofline | |")[2].partition("\n\n")[0]
    rows = [[cell.strip(" *") for cell in line.strip("|").split("|")] for line in body.splitlines()[2:]]
    expected = []
    for part in ("step", "rollout", "update"):
        planned = of["plan"][f"{part}_seconds"]
        share = f"{planned / seconds(part):.0%}"
        expected.append([f"{seconds(part):.1f} s", f"{planned:.1f} s", share])
    assert f"one H200 [came to {expected[0][2]}](" in " ".join(read("docs/gpu_node.md").split())
    (gradient,) = of["update"]
    least = gradient["model_flops"] / 989e12
    expected.append([f"{gradient['seconds']:.2f} s", f"{least:.2f} s", f"{gradient['utilisation']:.0%}"])
    took = 1e-3 * token["milliseconds_per_token"]
    least = took * token["bandwidth_share"]
    share = f"{token['bandwidth_share']:.0%}"
    expected.append([f"{1e3 * took:.1f} ms", f"{1e3 * least:.1f} ms", share])
    assert [row[1:] for row in rows] == expected
    assert f"All {len(of['correctness'])} checks passed" in " ".join(page.split())
    assert all(check["passed"] for check in of["correctness"])
    assert f"took {of['decode'][0]['compile_seconds']} s together" in " ".join(
        read("docs/rollout.md").split()
    )
    words = " ".join(page.split())
    first, again = (run["first_steps_seconds"][0] for run in of["step"]["runs"][:0:-1])
    compiling = first - seconds("step")
    _, trl = of["step"]["trl"]["step_seconds"]
    assert of["step"]["trl"]["caption_tokens"] == run["caption_tokens"]
    ratio = trl / seconds("step")
    assert f"TRL 1.16 took {trl:.1f} s for such a step, **{ratio:.1f} times** as long" in words
    assert f"[{ratio:.0f} times as long on an H200]" in read("README.md")
    words = " ".join(read("docs/one_gpu.md").split())
    assert f"took {seconds('step'):.1f} s for a step, with" in words
    assert (
        f"first step took {first:.0f} s, {compiling:.0f} of them to compile; with the programs of an "
        f"earlier start it took {again:.0f} s" in words
    )


PRODUCTS, ATTENTION = ("gemm_", "nvjet_", "sm90_xmma_gemm"), ("vcap_decode_", "cudnn_")
"""How kernels of either kind begin."""


def shares(kinds):
    """Of products, attention and all other kernels, and their seconds together."""
    seconds = [0.0, 0.0, 0.0]
    for kind in kinds:
        name = kind["kind"]
        seconds[0 if name.startswith(PRODUCTS) else 1 if name.startswith(ATTENTION) else 2] += kind["seconds"]
    return [f"{part / sum(seconds):.0%}" for part in seconds], sum(seconds)


def test_the_gpus_page_says_where_a_steps_time_goes():
    of, page = json.loads(read("docs/gpu/h200.json")), read("docs/gpu/README.md")
    words, run = " ".join(page.split()), of["step"]["profiled"]
    programs = run["programs"]
    for name, row in (
        ("decode", "drawing captions"),
        ("accumulate", "the gradient"),
        ("logprobs", "log-probabilities of the reference"),
    ):
        parts, every = shares(programs[f"jit__{name}"]["kinds"])
        assert f"| {row} | {every:.2f} | {' | '.join(parts)} |" in page
    drawing = programs["jit__decode"]
    busy = drawing["busy_seconds"] / drawing["seconds"]
    assert f"the GPU was busy for {busy:.0%} of the drawing" in words
    before = sum(shares(programs[name]["kinds"])[1] for name in ("jit_encode", "jit__fill"))
    assert f"| pictures and prompts | {before:.2f} |" in page
    captions = {int(tokens): took for tokens, took in run["captions_kernel_microseconds"].items()}
    more = (captions[1024] - captions[64]) / 15
    read_bytes = 64 * 64 * 2 * 8 * 128 * 2  # 64 tokens of 64 captions: keys and values of 8 heads of 128
    assert f"{captions[64]:.0f} µs while they are short, and {captions[1024]:.0f} µs at 1,024 tokens" in words
    assert f"{more:.0f} µs more for every 64 tokens, which is {read_bytes / more * 1e-6:.1f} TB/s" in words
    prompt = run["prompt_kernel_microseconds"]
    lost = captions[64] - more, prompt - 8 * 1310 * 2 * 8 * 128 * 2 / 4.4e6
    assert (
        f"{lost[0]:.0f} µs of every call are lost, and {lost[1]:.0f} µs of the prompt's {prompt:.0f}" in words
    )
    assert f"together {sum(lost) * 28 * 1024 * 1e-6:.1f} s of a step" in words
    kinds = programs["jit__accumulate"]["kinds"]
    wide = sum(kind["seconds"] for kind in kinds if kind["kind"].startswith("sm90_xmma_gemm_f32f32"))
    assert f"{wide:.2f} s were two products of the head's gradient" in words
    head = "nvjet_sm90_tss_128x160_64x5_2x1_v_bz_NNT"  # 16 times: 4,096 tokens, 2,048 numbers, 151,936 words
    (forward,) = (k for k in programs["jit__logprobs"]["kinds"] if k["kind"] == head)
    reached = 16 * 2 * 4096 * 2048 * 151_936 / forward["seconds"] / 989e12
    assert f"that of the head, reaches {reached:.0%}" in words
    assert f"come back in {run['waited_for_copies_seconds']:.2f} s" in words
    latest, trl = of["step"]["runs"][-1], of["step"]["trl"]
    (now,), (drawing,), (update,) = (latest[f"{part}_seconds"] for part in ("step", "rollout", "update"))
    commit = f"(commit `{latest['commit']}`)"
    assert (
        f"takes {now:.1f} s, {drawing:.1f} s to draw captions and {update:.1f} s to update {commit}" in words
    )
    earlier = [run[f"{part}_seconds"] for part in ("step", "rollout", "update")]
    assert "which took {:.1f} s ({:.1f} and {:.1f})".format(*earlier) in words
    first, second = trl["step_seconds"]
    assert f"took {second:.1f} s for its second step on the same GPU, {second / now:.1f} times" in words
    assert f"and {trl['peak_bytes'][1] / 1e9:.0f} GB at its peak. Its first took {first:.0f} s while" in words

    (gradient,) = of["update"]
    for name, part in zip(
        ("products", "attention", "all other kernels"), shares(gradient["trace"]["kinds"])[0], strict=True
    ):
        assert f"| {name} | {part} |" in page
    assert f"{gradient['seconds']:.2f} s for {gradient['model_flops'] / 1e12:,.0f} TFLOP" in words
    done = gradient["flops"]
    assert f"{done / 1e12:,.0f} TFLOP, or {done / gradient['seconds'] / 989e12:.0%}." in words
    assert f"Compiling took {gradient['compile_seconds']} s" in words


def test_the_gpus_page_has_what_was_measured():
    of, page = json.loads(read("docs/gpu/h200.json")), read("docs/gpu/README.md")
    rows = {}
    for row in of["new_tokens"]["rows"]:
        size, took = row["size"], row["microseconds"]
        tokens = size["tokens"] + 32
        name = f"{size['model']}, {size['groups']} x ({size['prompt']:,} + {size['captions']} x {tokens:,})"
        seconds = sum(took.values())
        rows.setdefault(name, {})[row["kernel"].partition(",")[0]] = seconds, sum(row["read_once"].values())
    for name, kernels in rows.items():
        (before, once), (now, _) = kernels["before"], kernels["as it is"]
        assert f"| {name} | {before:.1f} | {now:.1f} | {once:.1f} |" in page
    words = " ".join(page.split())
    *some, last = (f"{sum(row['microseconds'].values()):.1f}" for row in of["new_tokens"]["since"]["rows"])
    since = f"{of['decode_since']['milliseconds_per_token']} ms a token"
    assert f"end at once: {', '.join(some)} and {last} µs, and {since}" in words
    now, before = (1e3 * row["seconds_per_token"] for row in of["decode"])
    assert f"went from {before:.2f} to {now:.2f} ms" in words

    trace = of["trace"]
    every = sum(kind["seconds"] for kind in trace["kinds"])

    def share(*begins):
        seconds = sum(kind["seconds"] for kind in trace["kinds"] if kind["kind"].startswith(begins))
        return f"{seconds / every:.0%}"

    products, attention = ("gemm_",), ("vcap_decode_",)
    rest = tuple(
        kind["kind"] for kind in trace["kinds"] if not kind["kind"].startswith((*products, *attention))
    )
    for what, begins in (
        ("products", products),
        ("attention of new tokens", attention),
        ("all other kernels", rest),
    ):
        assert f"| {what} | {share(*begins)} |" in page
    (seconds,) = (kind["seconds"] for kind in trace["kinds"] if kind["kind"].startswith(products))
    assert (
        f"weights at {trace['parameters'] * trace['tokens'] / seconds / 4.8e12:.0%} of the bandwidth" in words
    )
    busy = trace["busy_seconds"] / trace["seconds"]
    assert f"the GPU was busy for {busy:.0%} of the time. Nearly all of the rest lay between tokens" in words
    assert 1 - busy - trace["longer_gaps_share"] < 0.015

    steps = of["repeats"]["steps"]
    for flag, found in of["repeats"]["flags"].items():
        name = "" if flag == "none" else f"`{flag}`"
        same = f"{found['same']} of {steps}"
        assert (
            f"| {name} | {f'**{same}**' if found['same'] == steps else same} |".replace("|  |", "| |") in page
        )


def test_the_lessons_have_what_the_probe_of_completeness_found():
    probes, of_four = (
        json.loads(read(f"docs/reproduction/probe_{name}.json")) for name in ("completeness", "four_places")
    )
    words = " ".join(read("docs/science.md").split())
    seeds = [probes[name] for name in ("right", "right_1", "right_2")]
    more_of_four, seeds_of_four = (
        [of_four[f"{name}_{seed}" if seed else name] for seed in range(5)] for name in ("more", "right")
    )

    def ranged(values, digits):
        mean = sum(values) / len(values)
        return f"{mean:.{digits}%} ({min(values):.{digits}%} to {max(values):.{digits}%})"

    rows = (
        ("start", [probes["start"]]),
        ("the paper's weights, 400 steps, seed 0", [probes["paper"]]),
        ("Completeness first, 140 steps, seed 0", [probes["more"]]),
        ("then the paper's weights, 260 steps, seeds 0 to 2", seeds),
        ("four places: Completeness first, 200 steps, seeds 0 to 4", more_of_four),
        ("then the paper's weights, 140 steps, seeds 0 to 4", seeds_of_four),
    )
    for name, those in rows:
        rates = [
            [one["sampled"]["mention_rates"][kind] for one in those] for kind in ("pattern", "direction")
        ]
        cells = [ranged(rate, 0) if len(rate) > 1 else f"{rate[0]:.0%}" for rate in rates]
        assert f"| {name} | {' | '.join(cells)} |" in words
    (covered, wrong), (covered_by_four, wrong_by_four) = (
        [ranged([one["greedy"][key] for one in those], 1) for key in ("coverage", "false_share")]
        for those in (seeds, seeds_of_four)
    )
    wrong = wrong.replace(" ", " false claims ", 1)
    start = probes["start"]["greedy"]
    assert (
        f"the policies of three places cover {covered} of the facts with {wrong}, those of four {covered_by_four} with "
        f"{wrong_by_four}, and the start {start['coverage']:.1%} with {start['false_share']:.1%}." in words
    )
    marks = [of["sampled"]["mention_rates"]["mark"] for of in (more_of_four[0], seeds_of_four[0])]
    assert f"captions mention {marks[0]:.0%} of them, and after the paper's weights {marks[1]:.0%}" in words
    assert max(of["sampled"]["mention_rates"]["mark"] for of in more_of_four[1:]) < 0.03


def test_the_lessons_have_what_the_formulas_said_of_real_captions(report):
    rates = {
        (table["modality"], row["name"]): {name: cell["value"] for name, cell in row["cells"].items()}
        for table in report["tables"]
        if table["study"] == "theory"
        for row in table["rows"]
    }
    words = " ".join(read("docs/science.md").split())
    image, video, base = (rates[of] for of in (("image", "e1"), ("video", "e1"), ("video", "base")))
    of_slots = "P_coll, errors at slots of the picture"
    assert f"whole reference in {image['P_recall']:.0%} of the cases" in words
    assert f"{video['P_recall']:.0%}" == f"{image['P_recall']:.0%}"
    covers = image["covers R"], video["covers R"]
    assert "It does in {:.0%} on pictures and in {:.0%} on videos".format(*covers) in words
    assert f"{image['errors miss R']:.0%} of e1's captions of pictures have no error" in words
    assert f"the formula says {image['P_coll']:.0%}. " in words
    assert f"it comes close, with {image[of_slots]:.0%}. " in words
    told = "for e1 it is {:.0%}, where the formula says {:.0%}, or {:.0%} by such slots; "
    told += "for the base {:.0%}, with {:.0%} or {:.0%}."
    quantities = ("errors miss R", "P_coll", of_slots)
    assert told.format(*(of[one] for of in (video, base) for one in quantities)) in words


def test_the_lessons_say_how_soon_references_of_each_size_teach(known):
    studies = plan_of(quick=False, seeds=range(5), only=["reference_size"], modalities=["video"])
    rows = by_row(studies, known)["video"]
    whole, cut = ([rows[row][seed].steps_to_level for seed in range(5)] for row in ("e1", "cut_1"))
    reached = sorted(steps for steps in cut if steps is not None)
    words = " ".join(read("docs/science.md").split())
    assert (
        f"cover {LEVEL:.0%} after {min(whole)} to {max(whole)} steps from the whole text, and after "
        f"{reached[0]} and {reached[1]} from one sentence, where three runs of five never come to it" in words
    )
    assert (len(reached), cut.count(None)) == (2, 3)


def test_the_lessons_say_how_many_seeds_showed_that_false_claims_fall(known):
    rows = by_row(plan_of(quick=False, seeds=range(11), only=["main"], modalities=["image"]), known)["image"]

    def falls(seeds):
        e1, base = (
            [estimates.shares(rows[row][s].counts, "false_claims") for s in range(seeds)]
            for row in ("e1", "base")
        )
        return estimates.difference(e1, base).high < 0

    assert [falls(seeds) for seeds in range(5, 12)] == [False] * 2 + [True] * 5
    assert "Six did not show that false claims fall, seven and more do." in " ".join(
        read("docs/science.md").split()
    )
