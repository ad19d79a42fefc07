"""The pages in a real browser: headless Chromium by Playwright, where both are installed."""

from __future__ import annotations

import json
import shutil
from contextlib import contextmanager

import av
import numpy as np
import pytest

from tests.data.media_files import write_video
from tests.human_eval.serving_study import served
from tests.human_eval.small_study import CAPTIONS, change_row, write_small_study
from vcap_jax.human_eval.answers import StoredAnswers
from vcap_jax.human_eval.application import owner
from vcap_jax.human_eval.exchange import records_of
from vcap_jax.human_eval.study import read_study
from vcap_jax.system.event_loop import LoopThread

sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install -e .[browser]")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium")
WAIT_MS = 120_000
"""Guards against a hang; on a busy machine a page takes its time."""


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        one = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield one
        one.close()


@contextmanager
def running(folder):
    """The study of a folder, served from a thread of its own: its links."""
    loop = LoopThread("study server")
    context = served(read_study(folder))
    try:
        server = loop.run(context.__aenter__())
        yield server.links
        loop.run(context.__aexit__(None, None, None))
    finally:
        loop.close()


@contextmanager
def entered(browser, link, **options):
    """A page of somebody who has opened their link, in a browser of their own; it must not fail or ask elsewhere."""
    context = browser.new_context(**({"viewport": {"width": 1280, "height": 800}} | options))
    context.set_default_timeout(WAIT_MS)
    page = context.new_page()
    failures, asked = [], []
    page.on("pageerror", lambda error: failures.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(link)
    page.locator("button.primary").press("Enter")
    page.wait_for_url(lambda url: "/enter/" not in url)
    yield page
    assert failures == []
    root = link.split("/enter/")[0]
    assert [url for url in asked if not url.startswith(root)] == []
    context.close()


def on(page, number, of=3):
    sync_api.expect(page.locator("#statement-place")).to_contain_text(
        f"Statement {number} of {of}", timeout=WAIT_MS
    )


def saved(page):
    sync_api.expect(page.locator("#saved")).to_have_text("saved", timeout=WAIT_MS)


def answers(folder):
    study = read_study(folder)
    with StoredAnswers(folder / "answers.sqlite") as stored:
        return records_of(study, stored)


@pytest.fixture
def folder(tmp_path):
    return write_small_study(tmp_path, adjudicator="carla")


def test_a_whole_item_by_keyboard(browser, folder):
    with running(folder) as links, entered(browser, links["anna"]) as page:
        on(page, 1)
        page.keyboard.press("1")
        sync_api.expect(page.locator("#step2")).to_be_enabled()
        page.keyboard.press("2")
        on(page, 2)
        page.keyboard.press("s")
        on(page, 3)
        page.keyboard.press("u")
        on(page, 2)
        page.keyboard.press("2")
        on(page, 3)
        page.keyboard.press("m")
        page.keyboard.type("1u not keys")
        page.keyboard.press("Enter")
        page.keyboard.press("3")
        sync_api.expect(page.locator("#ranking-card")).to_be_visible()
        for letter in "abbaab":
            page.keyboard.press(letter)
        sync_api.expect(page.locator("#finish")).to_be_enabled()
        page.keyboard.press("Backspace")
        sync_api.expect(page.locator("#finish")).to_be_disabled()
        page.keyboard.press("b")
        page.keyboard.press("Enter")
        sync_api.expect(page.locator("#where")).to_have_text("Item 2 of 2", timeout=WAIT_MS)
        saved(page)
    found = answers(folder)
    labels = sorted((one.step1, one.step2, one.note) for one in found.answers)
    assert labels == [
        ("1. consistent", "2. holding", ""),
        ("2. inconsistent", None, ""),
        ("3. undecidable", None, "1u not keys"),
    ]
    (ranked,) = found.rankings
    assert ranked.accuracy == ranked.granularity != ranked.completeness


def test_a_whole_item_by_mouse(browser, folder):
    with running(folder) as links, entered(browser, links["anna"]) as page:
        for number in (1, 2, 3):
            on(page, number)
            page.click('[data-step1="1. consistent"]')
            page.click('[data-step2="1. not holding"]')
        for ranking in ("accuracy", "completeness", "granularity"):
            for letter in ("B", "A"):
                page.click(f'[data-ranking="{ranking}"] .pool button:has-text("{letter}")')
        page.click('[data-ranking="accuracy"] [aria-label="Move A up"]')
        page.click("#finish")
        sync_api.expect(page.locator("#where")).to_have_text("Item 2 of 2", timeout=WAIT_MS)
        # The picture: the wheel zooms, dragging moves.
        shown = "document.querySelector('#stage img').style.transform"
        before = page.evaluate(shown)
        page.mouse.move(300, 400)
        page.mouse.wheel(0, -400)
        zoomed = page.evaluate(shown)
        page.mouse.down()
        page.mouse.move(380, 430)
        page.mouse.up()
        assert len({before, zoomed, page.evaluate(shown)}) == 3
        saved(page)
    found = answers(folder)
    assert [one.step2 for one in found.answers] == ["1. not holding"] * 3
    assert found.rankings[0].accuracy != found.rankings[0].completeness == found.rankings[0].granularity


def test_a_reload_in_the_middle_goes_on_there(browser, folder):
    with running(folder) as links, entered(browser, links["anna"]) as page:
        on(page, 1)
        order = page.locator("#captions .caption").all_inner_texts()
        page.keyboard.press("2")
        on(page, 2)
        page.keyboard.press("1")
        saved(page)
        page.reload()
        on(page, 2)
        assert page.locator("#captions .caption").all_inner_texts() == order
        sync_api.expect(page.locator("#step2")).to_be_enabled()
        page.keyboard.press("u")
        page.keyboard.press("u")
        on(page, 1)
        sync_api.expect(page.locator("#undo")).to_be_disabled()
        saved(page)
    assert answers(folder).answers == ()


def test_two_annotators_and_two_tabs(browser, folder):
    with (
        running(folder) as links,
        entered(browser, links["anna"]) as anna,
        entered(browser, links["ben"]) as ben,
    ):
        second = anna.context.new_page()
        second.goto(anna.url)
        on(second, 1)  # before the first tab answers: it asks for the item only after it has loaded
        for page, key in ((anna, "2"), (ben, "3")):
            on(page, 1)
            page.keyboard.press(key)
            on(page, 2)
            saved(page)
        on(second, 1)
        second.keyboard.press("3")  # the other tab has answered this
        sync_api.expect(second.locator("#alert")).to_contain_text("another tab", timeout=WAIT_MS)
    assert sorted((one.annotator, one.step1) for one in answers(folder).answers) == [
        ("anna", "2. inconsistent"),
        ("ben", "3. undecidable"),
    ]


def test_a_wrong_link_is_refused(browser, folder):
    with running(folder) as links:
        page = browser.new_page()
        answer = page.goto(links["anna"][:-4] + "xxxx")
        assert (answer.status, "not valid" in page.inner_text("body")) == (401, True)
        root = links["anna"].split("/enter/")[0]
        assert page.goto(f"{root}/annotate").status == 401
        page.close()


def test_markup_in_texts_is_shown_as_text(browser, folder):
    evil = "<img src=x onerror=\"document.title='broken'\"><b>bold</b> &amp; 🚗"
    rows = [json.loads(line) for line in (folder / "items.jsonl").read_text().splitlines()]
    for number in range(len(rows)):
        captions = [{"model": model, "text": f"{text} {evil}"} for model, text in CAPTIONS.items()]
        change_row(folder / "items.jsonl", number, captions=captions)
    for number in range(6):
        change_row(folder / "propositions.jsonl", number, text=f"{number} {evil}")
    with running(folder) as links, entered(browser, links["anna"]) as page:
        on(page, 1)
        assert evil in page.inner_text("#statement")
        assert all(evil in text for text in page.locator("#captions .caption").all_inner_texts())
        assert page.locator("#captions img, #captions b, #statement *").count() == 0
        for key in ("2", "2"):
            page.keyboard.press(key)
        on(page, 3)
        marks = []
        for number in range(3):
            page.locator("#dots button").nth(number).click()
            marks += page.locator("#captions mark").all_inner_texts()
        assert marks == ["It is old."]  # behind an emoji: code points
        assert page.title() != "broken"


def test_a_video_of_which_only_the_sound_can_be_played_is_told(browser, folder):
    change_row(folder / "items.jsonl", 0, image=None, video="a.mp4")
    change_row(folder / "items.jsonl", 1, image=None, video="a.mp4")
    write_video(folder / "pictures.mp4", 5, codec="mpeg4")
    with av.open(str(folder / "pictures.mp4")) as source, av.open(str(folder / "a.mp4"), "w") as target:
        video = target.add_stream_from_template(source.streams.video[0])
        sound = target.add_stream("aac", rate=44_100, layout="mono")
        for packet in source.demux(video=0):
            if packet.dts is not None:
                packet.stream = video
                target.mux(packet)
        for number in range(40):
            frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
            frame.sample_rate, frame.pts = 44_100, number * 1024
            target.mux(sound.encode(frame))
        target.mux(sound.encode(None))
    with running(folder) as links, entered(browser, links["anna"]) as page:
        sync_api.expect(page.locator("#stage .lost")).to_contain_text("cannot be shown", timeout=WAIT_MS)


def test_no_page_is_wider_than_a_phone(browser, folder):
    with running(folder) as links:
        for who in ("anna", "carla", "owner"):
            with entered(browser, links[who], viewport={"width": 360, "height": 740}) as page:
                page.wait_for_load_state("networkidle")
                wide = page.evaluate("document.documentElement.scrollWidth")
                assert wide == 360, who


def test_answers_of_a_lost_connection_are_kept_and_sent_later(browser, folder):
    with running(folder) as links, entered(browser, links["anna"]) as page:
        on(page, 1)
        page.context.set_offline(True)
        page.keyboard.press("2")
        on(page, 2)
        page.keyboard.press("3")
        on(page, 3)
        sync_api.expect(page.locator("#saved")).to_contain_text("2 answers kept", timeout=WAIT_MS)
        assert answers(folder).answers == ()
        page.context.set_offline(False)
        saved(page)
        assert len(answers(folder).answers) == 2
        # Also of a page that is left meanwhile.
        page.context.set_offline(True)
        page.keyboard.press("2")
        sync_api.expect(page.locator("#saved")).to_contain_text("1 answer kept", timeout=WAIT_MS)
        page.context.set_offline(False)
        page.reload()
        sync_api.expect(page.locator("#ranking-card")).to_be_visible(timeout=WAIT_MS)
        saved(page)
    assert len(answers(folder).answers) == 3


@pytest.mark.parametrize(
    ("status", "kind", "said"),
    [
        (200, "text/html", "1 answer kept"),
        (404, "text/plain", "1 answer kept"),
        (421, "text/plain", "not saved"),
    ],
)
def test_answers_are_kept_where_something_else_than_the_study_answers(browser, folder, status, kind, said):
    with running(folder) as links, entered(browser, links["anna"]) as page:
        asked = "**/api/item/*/answer"
        page.route(asked, lambda route: route.fulfill(status=status, content_type=kind, body="Sign in."))
        page.reload()  # what is under way while a route is set may pass it by
        on(page, 1)
        page.keyboard.press("2")
        sync_api.expect(page.locator("#saved")).to_contain_text(said, timeout=WAIT_MS)
        assert answers(folder).answers == ()
        page.unroute(asked)
        page.reload()
        on(page, 2)
        saved(page)
        assert len(answers(folder).answers) == 1


def test_answers_go_in_their_order_though_the_clock_is_set_back(browser, folder):
    with running(folder) as links, entered(browser, links["anna"]) as page:
        on(page, 1)
        page.context.set_offline(True)
        page.keyboard.press("2")
        on(page, 2)
        page.evaluate("const now = Date.now; Date.now = () => now() - 3600e3")
        page.keyboard.press("p")
        on(page, 1)
        page.keyboard.press("3")
        sync_api.expect(page.locator("#saved")).to_contain_text("2 answers kept", timeout=WAIT_MS)
        page.context.set_offline(False)
        saved(page)
        assert page.locator("#alert").is_hidden()
    assert [one.step1 for one in answers(folder).answers] == ["3. undecidable"]


def test_a_third_person_decides_a_dispute(browser, folder, monkeypatch):
    monkeypatch.setattr(owner, "DISPUTES_A_PAGE", 2)
    for name, rows in (("items.jsonl", 1), ("propositions.jsonl", 3)):
        lines = (folder / name).read_text().splitlines(keepends=True)
        (folder / name).write_text("".join(lines[:rows]))
    with running(folder) as links:
        for name, key in (("anna", "2"), ("ben", "3")):
            with entered(browser, links[name]) as page:
                for number in (1, 2, 3):
                    on(page, number)
                    page.keyboard.press(key)
                sync_api.expect(page.locator("#ranking-card")).to_be_visible()
                saved(page)
        with entered(browser, links["carla"]) as page:
            first = page.locator(".dispute").first
            first.locator('[name="step1"]').select_option("1. consistent")
            first.locator('[name="step2"]').select_option("2. holding")
            first.locator("button.primary").click()
            sync_api.expect(first.locator(".saved")).to_have_text("saved", timeout=WAIT_MS)
            sync_api.expect(first.locator(".decision")).to_contain_text("2. holding")
            page.click("a[data-open]")  # of the two that are left the second, which was the third
            sync_api.expect(page.locator(".dispute")).to_have_count(1, timeout=WAIT_MS)
            page.goto(page.url.split("?")[0])
            assert page.locator(".dispute").count() == 2
    assert [one.step2 for one in answers(folder).adjudicated] == ["2. holding"]
