"""The application over HTTP: who gets in, what is told, what is stored."""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
import stat
from functools import wraps

import aiohttp
import pytest
from yarl import URL

from tests.human_eval.serving_study import everybody, served, visitor
from tests.human_eval.small_study import change_row, small_study, write_small_study
from vcap_jax.human_eval.application.server import serving
from vcap_jax.human_eval.assignment import AnnotatorView
from vcap_jax.human_eval.errors import StudyError
from vcap_jax.human_eval.study import read_study


def in_a_loop(test):
    @wraps(test)
    def run(*args, **kwargs):
        asyncio.run(test(*args, **kwargs))

    return run


@pytest.fixture
def study(tmp_path):
    return small_study(tmp_path, adjudicator="carla")


async def first_item(one):
    me = await one.json("/api/me")
    return await one.json(f"/api/item/{me['items'][0]['key']}")


async def decide_all(one, item):
    for prop in item["propositions"]:
        assert (await one.answer(item, prop, "1. consistent", "2. holding"))[0] == 200


@in_a_loop
async def test_nobody_gets_in_without_a_link(study):
    async with served(study) as server, visitor(server, "anna", enter=False) as one:
        for path in ("/", "/annotate", "/api/me", "/study", "/disputes", "/own", "/export/annotations.jsonl"):
            status, text = await one.get(path)
            assert status == 401, path
            assert "your own link" in text
        assert (await one.get("/enter/" + "x" * 32))[0] == 401
        assert (await one.post("/enter/" + "x" * 32))[0] == 401
        assert (await one.get("/static/annotate.js"))[0] == 200
        assert (await one.get("/static/../access.py"))[0] in (401, 403, 404)


@in_a_loop
async def test_looking_at_a_link_does_not_log_in(study):
    async with served(study) as server, visitor(server, "anna", enter=False) as one:
        status, text = await one.get(server.links["anna"].removeprefix(server.address))
        assert status == 200
        assert "Begin as anna" in text
        assert (await one.get("/api/me"))[0] == 401


@in_a_loop
async def test_everybody_has_their_own_pages_and_no_others(study):
    async with served(study) as server:
        for name, allowed in {
            "anna": {"/annotate", "/own", "/api/me"},
            "carla": {"/disputes"},
            "owner": {"/study", "/disputes", "/export/rankings.jsonl"},
        }.items():
            async with visitor(server, name) as one:
                for path in (
                    *("/annotate", "/own", "/api/me", "/disputes", "/study"),
                    "/export/rankings.jsonl",
                ):
                    assert (await one.get(path))[0] == (200 if path in allowed else 403), (name, path)


@in_a_loop
async def test_answers_have_the_headers_that_keep_everything_here(study):
    async with (
        served(study) as server,
        visitor(server, "anna") as one,
        one.http.get(server.address + "/annotate") as page,
    ):
        policy = page.headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
        assert "unsafe" not in policy
        assert page.headers["X-Content-Type-Options"] == "nosniff"
        (cookie,) = one.http.cookie_jar
        assert (cookie["httponly"], cookie["samesite"]) == (True, "Strict")
        text = await page.text()
        assert "http:" not in text.replace("http://www.w3.org", "")
        assert "https:" not in text
        assert "<script>" not in text
        assert "style=" not in text


@in_a_loop
async def test_requests_of_other_sites_and_names_are_refused(study):
    async with served(study) as server, visitor(server, "anna") as one:
        item = await first_item(one)
        said = {
            "prop": item["propositions"][0]["key"],
            "step1": "2. inconsistent",
            "step2": None,
            "note": "",
            "version": 0,
            "request": "r",
        }
        path = f"/api/item/{item['key']}/answer"
        assert (await one.post(path, said, Origin="http://elsewhere.example"))[0] == 403
        assert (await one.get("/api/me", headers={"Host": "elsewhere.example"}))[0] == 421
        one.name = ""
        assert (await one.post(path, said))[0] == 403
        one.name = "ben"  # a page of ben's in a browser that is now anna's
        assert (await one.post(path, said))[0] == 403
        one.name = "anna"
        assert (await one.post(path, said, Origin=server.address))[0] == 200


@in_a_loop
async def test_headers_and_addresses_that_no_browser_sends_are_refused_like_others(study):
    async def status_of(server, start, *headers):
        url = URL(server.address)
        reader, writer = await asyncio.open_connection(url.host, url.port)
        writer.write(b"\r\n".join((start, *headers, b"Content-Length: 0", b"", b"")))
        line = await reader.readline()
        writer.close()
        return int(line.split()[1])

    async with served(study) as server, visitor(server, "owner") as one:
        host = b"Host: " + server.address.removeprefix("http://").encode()
        (own,) = one.http.cookie_jar
        cookie = f"Cookie: {own.key}=".encode() + b"\xff\xfe"
        assert await status_of(server, b"GET /api/me HTTP/1.1", b"Host: [") == 421
        assert await status_of(server, b"GET /api/me HTTP/1.1", host, cookie) == 401
        assert await status_of(server, b"POST /enter/x HTTP/1.1", host, b"Origin: http://[") == 403
        assert (await one.get("/disputes?from=" + "9" * 5000))[0] == 200


@in_a_loop
async def test_what_annotators_get_names_no_model(study):
    async with served(study) as server, visitor(server, "anna") as one:
        item = await first_item(one)
        told = json.dumps(item)
        assert "base" not in told
        assert "tuned" not in told
        assert [caption["letter"] for caption in item["captions"]] == ["A", "B"]
        assert [prop["letter"] for prop in item["propositions"]] in (["A", "A", "B"], ["A", "B", "B"])
        marked = [prop for prop in item["propositions"] if prop["span"]]
        start, end = marked[0]["span"]
        text = next(c["text"] for c in item["captions"] if c["letter"] == marked[0]["letter"])
        assert text[start:end] == "It is old."
        # The same again: order and names are stable.
        again = await one.json(f"/api/item/{item['key']}")
        assert again["captions"] == item["captions"]
        assert again["propositions"] == item["propositions"]


@in_a_loop
async def test_an_item_from_the_first_answer_to_the_end(study):
    async with served(study) as server, visitor(server, "anna") as one:
        item = await first_item(one)
        first, second, third = item["propositions"]
        assert (await one.finish(item))[0] == 422
        status, told = await one.answer(item, first, "2. inconsistent", "2. holding")
        assert (status, "step 2 is open only after" in told["error"]) == (422, True)
        assert (await one.answer(item, first, "1. consistent"))[0] == 200
        assert (await one.answer(item, first, "1. consistent", "2. holding", "<b>seen</b>"))[0] == 200
        assert (await one.answer(item, second, "3. undecidable", None, "subjective"))[0] == 200
        status, told = await one.answer(item, third, "1. consistent", None, "subjective")
        assert (status, "subjective" in told["error"]) == (422, True)
        stale = dict(item, verdicts={})
        assert (await one.answer(stale, first, "2. inconsistent"))[0] == 409
        undo = {"prop": second["key"], "version": 1, "request": "undo"}
        assert (await one.post(f"/api/item/{item['key']}/undo", undo))[1]["step1"] is None
        item = await one.json(f"/api/item/{item['key']}")
        for prop in (second, third):
            assert (await one.answer(item, prop, "2. inconsistent"))[0] == 200
        assert (await one.finish(item, accuracy=["A", "A"]))[0] == 422
        assert (await one.finish(item, accuracy=["A", "Z"]))[0] == 422
        assert (await one.finish(item, accuracy=["B", "A"]))[0] == 200
        assert (await one.answer(item, third, "1. consistent", "2. holding"))[0] == 422
        item = await one.json(f"/api/item/{item['key']}")
        assert item["finished"]
        assert item["rankings"]["accuracy"] == ["B", "A"]
        me = await one.json("/api/me")
        assert [row["finished"] for row in me["items"]] == [True, False]
        own = (await one.get("/own"))[1]
        assert "&lt;b&gt;seen&lt;/b&gt;" in own
        assert "<b>seen" not in own


@in_a_loop
async def test_bodies_that_are_no_answer_are_refused(study):
    async with served(study) as server, visitor(server, "anna") as one:
        item = await first_item(one)
        path = f"/api/item/{item['key']}/answer"
        good = {
            "prop": item["propositions"][0]["key"],
            "step1": "2. inconsistent",
            "step2": None,
            "note": "",
            "version": 0,
            "request": "r",
        }
        for bad in (
            {"prop": "x"},
            {"prop": 1},
            {"step1": "yes"},
            {"version": "0"},
            {"version": True},
            {"request": "r" * 65},
            {"request": None},
            {"note": "n" * 1001},
            {"note": "\ud83d"},
            {"note": None},
        ):
            assert (await one.post(path, good | bad))[0] == 422, bad
        assert (await one.post(path, ["x"]))[0] == 400
        unknown = {"Content-Type": "application/json; charset=nonsense"}
        assert (await one.post(path, good, **unknown))[0] == 400
        assert (await one.post(path, good | {"note": "n" * 70_000}))[0] == 413
        assert (await one.post("/api/item/none/answer", good))[0] == 404


@in_a_loop
async def test_media_are_those_of_ones_own_items_with_their_kind(tmp_path):
    study = small_study(tmp_path, overlap=0)
    async with served(study) as server, visitor(server, "anna") as anna, visitor(server, "ben") as ben:
        item = await first_item(anna)
        async with anna.http.get(server.address + item["media"]["url"]) as answer:
            assert (answer.status, answer.content_type) == (200, "image/png")
        async with anna.http.get(
            server.address + item["media"]["url"], headers={"Range": "bytes=0-3"}
        ) as part:
            assert (part.status, await part.read()) == (206, b"\x89PNG")
        assert (await ben.get(item["media"]["url"]))[0] == 404


@in_a_loop
async def test_the_one_who_runs_the_study_sees_progress_agreement_and_disputes(study):
    async with everybody(study) as (anna, ben, carla, owner):
        for one, step1 in ((anna, "1. consistent"), (ben, "2. inconsistent")):
            me = await one.json("/api/me")
            for row in me["items"]:
                item = await one.json(f"/api/item/{row['key']}")
                for number, prop in enumerate(
                    sorted(item["propositions"], key=lambda p: (p["kind"], p["text"]))
                ):
                    same = number == 0
                    chosen = "2. inconsistent" if same else step1
                    step2 = "2. holding" if chosen == "1. consistent" else None
                    assert (await one.answer(item, prop, chosen, step2))[0] == 200
                assert (await one.finish(item))[0] == 200
        page = (await owner.get("/study"))[1]
        assert "2 of 2" in page
        assert "4 propositions are in dispute" in page
        shown = (await carla.get("/disputes"))[1]
        assert shown.count('class="answer"') == 8
        assert "anna" not in shown
        assert "ben" not in shown.replace("benchmark", "")
        assert "Step 1: statement against picture" in shown  # a third person may never have annotated
        keys = re.findall(r'data-prop="(\w+)"', shown)
        assert len(keys) == 4
        said = {"prop": keys[0], "step1": "1. consistent", "step2": "2. holding", "note": "", "version": 0}
        assert (await owner.post("/api/adjudicate", said))[0] == 403
        for key in keys[:2]:
            assert (await carla.post("/api/adjudicate", said | {"prop": key}))[0] == 200
        for none in ("b/9", "a/1", keys[0][:-1]):
            assert (await carla.post("/api/adjudicate", said | {"prop": none}))[0] == 422
        assert "2 propositions are in dispute, 2 decided" in (await owner.get("/study"))[1]
        # The list has become shorter than where this page began, which said that nothing was left to decide.
        beyond = (await carla.get("/disputes?from=50"))[1]
        assert beyond.count('class="statement"') == 2
        assert "Nothing is in dispute" not in beyond
        lines = (await owner.get("/export/annotations.jsonl"))[1].splitlines()
        assert len(lines) == 12
        assert {json.loads(line)["annotator"] for line in lines} == {"anna", "ben"}
        assert len((await owner.get("/export/adjudications.jsonl"))[1].splitlines()) == 2
        assert (await owner.get("/export/answers.sqlite"))[0] == 404


@in_a_loop
async def test_a_third_person_is_not_told_whose_captions_are_in_dispute(tmp_path):
    folder = write_small_study(tmp_path, adjudicator="carla")
    models = ("base", "tuned")
    for number in range(6):
        change_row(folder / "propositions.jsonl", number, prop_id=f"{models[number % 3 == 2]}/{number}")
    study = read_study(folder)
    async with served(study) as server, visitor(server, "anna") as anna, visitor(server, "ben") as ben:
        for one, chosen in ((anna, "2. inconsistent"), (ben, "3. undecidable")):
            for row in (await one.json("/api/me"))["items"]:
                item = await one.json(f"/api/item/{row['key']}")
                for prop in item["propositions"]:
                    await one.answer(item, prop, chosen)
        async with visitor(server, "carla") as carla:
            shown = (await carla.get("/disputes"))[1]
    assert shown.count('class="card dispute"') == 6
    assert [model for model in models if model in shown] == []


@in_a_loop
async def test_what_is_in_dispute_no_more_is_not_counted_as_decided(study):
    async with everybody(study) as (anna, ben, carla, owner):
        chosen = ((anna, "2. inconsistent"), (ben, "3. undecidable"), (ben, "2. inconsistent"))
        for place, (one, step1) in enumerate(chosen):
            key = AnnotatorView(study, one.name).alias("a")
            item = await one.json(f"/api/item/{key}")
            prop = next(row for row in item["propositions"] if row["text"] == "The door is dented.")
            assert (await one.answer(item, prop, step1))[0] == 200
            if place == 1:
                (key,) = re.findall(r'data-prop="(\w+)"', (await carla.get("/disputes"))[1])
                said = {"prop": key, "step1": "3. undecidable", "step2": None, "note": "", "version": 0}
                assert (await carla.post("/api/adjudicate", said))[0] == 200
                assert "1 disputes, 1 decided" in (await carla.get("/disputes?all=1"))[1]
        assert "0 disputes, 0 decided" in (await carla.get("/disputes?all=1"))[1]
        shown = (await owner.get("/study"))[1]
        assert "0 propositions are in dispute" in shown
        assert "decided by a third person" not in shown


@in_a_loop
async def test_nobody_decides_a_dispute_that_they_are_in(study):
    """Who annotated, and is named as the adjudicator of a later start, could."""
    async with served(study) as server, visitor(server, "anna") as anna, visitor(server, "ben") as ben:
        for one, chosen in ((anna, "2. inconsistent"), (ben, "3. undecidable")):
            item = await one.json(f"/api/item/{AnnotatorView(study, one.name).alias('a')}")
            for prop in item["propositions"]:
                assert (await one.answer(item, prop, chosen))[0] == 200
    people = {"annotators": ("ben", "carla"), "adjudicator": "anna"}
    later = read_study(study.folder, study.settings.model_copy(update=people))
    async with served(later) as server, visitor(server, "anna") as anna:
        key = re.findall(r'data-prop="(\w+)"', (await anna.get("/disputes"))[1])[0]
        said = {"prop": key, "step1": "2. inconsistent", "step2": None, "note": "", "version": 0}
        status, told = await anna.post("/api/adjudicate", said)
        assert (status, "one of the answers is your own" in told["error"]) == (422, True)


@in_a_loop
async def test_another_study_at_the_same_address_is_told_from_this_one(tmp_path):
    """A browser keeps what is not sent yet by it."""
    told = []
    for name in ("one", "two", "one"):
        folder = tmp_path / name
        study = read_study(folder) if folder.exists() else small_study(folder)
        async with served(study) as server, visitor(server, "anna") as anna:
            told += re.findall(r'data-study="(\w+)"', (await anna.get("/annotate"))[1])
    assert told[0] == told[2] != told[1]


@in_a_loop
async def test_one_browser_is_in_two_studies_at_two_ports_of_a_host(tmp_path):
    one, two = (small_study(tmp_path / name) for name in ("one", "two"))
    async with served(one) as first, served(two) as second, visitor(first, "anna") as browser:
        entered = second.links["ben"].removeprefix(second.address)
        for server, name in ((first, "anna"), (second, "ben"), (first, "anna")):
            browser.address = server.address
            if server is second:
                assert (await browser.post(entered))[0] == 200
            assert f'data-person="{name}"' in (await browser.get("/annotate"))[1]


@in_a_loop
async def test_the_case_of_a_name_that_it_is_asked_by_does_not_matter(study):
    async with serving(study, names=["Lab-7.Example"]) as server:
        local = server.address.replace("Lab-7.Example", "127.0.0.1")
        port = local.rpartition(":")[2]
        async with aiohttp.ClientSession() as http:
            for asked, status in (("lab-7.example", 401), ("other.example", 421)):
                async with http.get(local, headers={"Host": f"{asked}:{port}"}) as answer:
                    assert answer.status == status


@in_a_loop
async def test_links_and_answers_are_the_same_when_it_is_started_again(study):
    async with served(study) as server, visitor(server, "anna") as one:
        item = await first_item(one)
        await decide_all(one, item)
        links = {name: link.rpartition("/")[2] for name, link in server.links.items()}
    path = study.folder / "links.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    async with served(study) as server, visitor(server, "anna") as one:
        assert {name: link.rpartition("/")[2] for name, link in server.links.items()} == links
        again = await one.json(f"/api/item/{item['key']}")
        assert again["verdicts"] == item["verdicts"]


@in_a_loop
async def test_what_somebody_without_a_link_has_begun_is_named(study):
    async with served(study) as server, visitor(server, "anna") as anna:
        assert server.left == {}
        item = await first_item(anna)
        assert (await anna.answer(item, item["propositions"][0], "2. inconsistent"))[0] == 200
    key = item["key"]
    later = read_study(study.folder, study.settings.model_copy(update={"annotators": ("ben", "dora")}))
    async with served(later) as server:
        assert server.left == {"anna": [AnnotatorView(study, "anna").items[key]]}


@in_a_loop
async def test_markup_of_captions_is_text_on_the_pages_of_the_server(tmp_path):
    folder = write_small_study(tmp_path)
    evil = "<img src=x onerror=alert(1)>"
    change_row(folder / "propositions.jsonl", 0, text=evil)
    study = read_study(folder)
    async with served(study) as server, visitor(server, "anna") as anna, visitor(server, "ben") as ben:
        for one, chosen in ((anna, "2. inconsistent"), (ben, "3. undecidable")):
            me = await one.json("/api/me")
            for row in me["items"]:
                item = await one.json(f"/api/item/{row['key']}")
                for prop in item["propositions"]:
                    await one.answer(item, prop, chosen, None, "<script>x</script>")
        async with visitor(server, "owner") as owner:
            for text in ((await owner.get("/disputes"))[1], (await anna.get("/own"))[1]):
                assert "&lt;img src=x onerror" in text
                assert "<img src=x" not in text
                assert "<script>x" not in text


@in_a_loop
async def test_an_address_that_is_taken_is_named(study, tmp_path):
    async with served(study) as server:
        port = int(server.address.rpartition(":")[2])
        with pytest.raises(StudyError, match=f"127.0.0.1:{port} cannot be served on"):
            async with serving(small_study(tmp_path / "other"), port=port):
                pass


@in_a_loop
async def test_a_study_is_served_once(study):
    """What one server hands out the other would not know, and an answer could be for an item that it gave away."""
    async with served(study):
        with pytest.raises(StudyError, match=r"another process .* is at work in"):
            async with serving(study):
                pass
    async with served(study):
        pass


@in_a_loop
async def test_what_the_store_cannot_do_is_told_and_not_an_error_without_words(study):
    async with served(study) as server, visitor(server, "anna") as anna, visitor(server, "owner") as owner:
        item = await first_item(anna)
        with sqlite3.connect(study.folder / "answers.sqlite") as db:
            db.execute("ALTER TABLE verdicts RENAME TO lost")
        for status, shown in (
            await anna.answer(item, item["propositions"][0], "2. inconsistent"),
            await owner.get("/study"),
        ):
            assert status == 503
            assert "answers.sqlite" in json.dumps(shown)


@pytest.mark.parametrize(("host", "port"), [("127.0.0.1", 70000), ("a" * 70 + ".example", 0)])
@in_a_loop
async def test_an_address_that_cannot_be_one_is_named(study, host, port):
    with pytest.raises(
        StudyError, match=rf"{host}:{port} cannot be served on .* give another --port or --host"
    ):
        async with serving(study, host=host, port=port):
            pass


def test_a_file_of_links_that_is_none_is_named(study):
    from vcap_jax.human_eval.application.access import read_tokens

    (study.folder / "links.json").write_text("[]")
    with pytest.raises(StudyError, match=r"links\.json.*remove the file"):
        read_tokens(study.folder, study.settings)
