"""A study's folder: everything that would not work later is said when it is read."""

from __future__ import annotations

import pytest

from tests.data.media_files import write_video
from tests.human_eval.small_study import change_row, small_study, write_small_study
from vcap_jax.data.errors import ManifestError
from vcap_jax.human_eval.errors import StudyError
from vcap_jax.human_eval.study import Settings, check_video, read_study


def test_a_sound_folder_is_read(tmp_path):
    study = small_study(tmp_path)
    assert list(study.items) == ["a", "b"]
    assert [one.prop_id for one in study.propositions["a"]] == ["a/0", "a/1", "a/2"]
    assert study.propositions["a"][1].span.text == "It is old."
    assert study.media_path("a").is_file()


@pytest.mark.parametrize(
    ("file", "row", "change", "message"),
    [
        ("items.jsonl", 1, {"id": "a"}, "occurs twice"),
        ("items.jsonl", 0, {"image": "../a.png"}, "leaves the study"),
        ("items.jsonl", 0, {"image": "c.png"}, "does not exist"),
        ("items.jsonl", 0, {"image": "a.svg"}, "browsers do not show"),
        ("items.jsonl", 0, {"video": "a.mp4"}, 'either "image" or "video"'),
        ("items.jsonl", 0, {"captions": [{"model": "base", "text": "x"}]}, '"captions"'),
        ("propositions.jsonl", 0, {"prop_id": "a/1"}, "occurs twice"),
        ("propositions.jsonl", 0, {"image_id": "z"}, "not in items.jsonl"),
        ("propositions.jsonl", 0, {"ref_model": "base"}, "with itself"),
        ("propositions.jsonl", 0, {"ref_model": "other"}, 'no caption of "other"'),
        (
            "propositions.jsonl",
            0,
            {"span": {"start": 0, "end": 3, "text": "red"}},
            "offsets count code points",
        ),
    ],
)
def test_what_is_wrong_is_told_in_one_line(tmp_path, file, row, change, message):
    folder = write_small_study(tmp_path)
    change_row(folder / file, row, **change)
    with pytest.raises(StudyError, match=message) as caught:
        read_study(folder)
    assert "\n" not in str(caught.value)


def test_files_that_are_not_there_are_named(tmp_path):
    with pytest.raises(StudyError, match="no folder"):
        read_study(tmp_path / "nothing")
    with pytest.raises(ManifestError, match=r"items\.jsonl does not exist"):
        read_study(tmp_path)


@pytest.mark.parametrize(
    "settings",
    [
        {"annotators": ["anna", "anna"]},
        {"overlap_size": 3},
        {"annotators": ["../x", "ben"]},
        {"adjudicator": "anna"},
        {"overlap": 1.5},
    ],
)
def test_settings_that_cannot_work_are_refused(settings):
    with pytest.raises(ValueError, match=r"."):
        Settings.model_validate({"annotators": ["anna", "ben"]} | settings)


def test_a_wrong_study_json_is_named(tmp_path):
    folder = write_small_study(tmp_path, overlp=1)
    with pytest.raises(StudyError, match=r'study\.json: "overlp": is a key that is not known'):
        read_study(folder)


def test_a_video_that_browsers_do_not_play_is_refused_by_its_codec(tmp_path):
    folder = write_small_study(tmp_path)
    change_row(folder / "items.jsonl", 0, image=None, video="a.mp4")
    write_video(folder / "a.mp4", 5)
    item = read_study(folder).items["a"]
    check_video(folder, item)
    write_video(folder / "a.mp4", 5, codec="mpeg4")  # as OpenCV writes with "mp4v"
    with pytest.raises(StudyError, match=r'item "a": a\.mp4 is coded as mpeg4, .*: convert it'):
        check_video(folder, item)
    (folder / "a.mp4").write_bytes(b"no video")
    with pytest.raises(StudyError, match=r'item "a": a\.mp4 cannot be read as a video'):
        check_video(folder, item)
