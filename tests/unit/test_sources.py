"""What a source of another kind itself says, or gets wrong: its parts, its patients, and files that are broken."""

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from command_line import fiss as command
from test_imports import MAP, ids, imported, make_coco, make_dicom, parts, png, scans
from worlds import make_folder, picture, save

import fiss
from fiss.data.imports import KINDS, dicom, writer
from fiss.errors import UserError


def cut(path):
    path.write_bytes(path.read_bytes()[: int(0.6 * path.stat().st_size)])


def unequal(path):
    import tifffile

    with tifffile.TiffWriter(path) as file:
        for k in range(3):
            file.write(np.zeros((4 + k, 6), np.uint16), photometric="minisblack")


def overwritten(path):
    data = bytearray(path.read_bytes())
    data[20:60] = b"\xee" * 40  # its first page, while all that tells its shape is whole
    path.write_bytes(data)


def make(root, kind):
    """Two files of a kind, or one json file of several images."""
    if kind == "coco":
        return make_coco(root)
    volume = np.random.default_rng(0).integers(0, 2, (16, 16, 3), dtype=np.uint8)
    for name in "ab":
        for folder in ("images", "masks") if kind != "huggingface" else ("",):
            (root / folder).mkdir(parents=True, exist_ok=True)
            if kind == "nifti":
                import nibabel

                nibabel.save(nibabel.Nifti1Image(volume, np.eye(4)), root / folder / f"{name}.nii.gz")
            elif kind == "tiff":
                import tifffile

                tifffile.imwrite(root / folder / f"{name}.tif", volume.T, photometric="minisblack")
        if kind == "dicom":
            make_dicom(root / "images" / name / "i", name, 1 + (name == "b"), 0, volume[..., 0])
            make_dicom(root / "images" / name / "j", name, 1 + (name == "b"), 1, volume[..., 0])
            for slice_ in "ij":
                save(root / "masks" / name / f"{slice_}.png", volume[..., 0])
        elif kind == "huggingface":
            import pyarrow.parquet

            cells = [{"bytes": png(picture(4, 4, k)), "path": None} for k in range(2)]
            drawn = [{"bytes": png(ids(*[[0, 1, 0, 1]] * 4)), "path": None}] * 2
            pyarrow.parquet.write_table(pyarrow.table({"image": cells, "mask": drawn}), root / f"{name}.parquet")
    return root


@pytest.mark.parametrize(
    ("kind", "bad", "spoil", "why"),
    [
        ("coco", "train/b.png", cut, "unreadable or truncated"),
        ("tiff", "images/a.tif", unequal, "pages of different sizes or kinds"),
        ("tiff", "images/a.tif", cut, "unreadable or truncated"),
        ("huggingface", "a.parquet", cut, "unreadable or truncated"),
        ("huggingface", "a.parquet", overwritten, "unreadable or truncated"),
        ("nifti", "images/a.nii.gz", cut, "unreadable or truncated"),
        ("nifti", "masks/a.nii.gz", cut, "unreadable or truncated"),
        ("dicom", "images/a/i", cut, "unreadable or truncated"),
    ],
)
def test_a_broken_file_is_named_and_the_others_are_imported(tmp_path, kind, bad, spoil, why):
    root = make(tmp_path / "from", kind)
    spoil(root / bad)
    made, *_ = imported(kind, root, tmp_path / "to", **({} if kind == "coco" else {"map": "1=thing"}))
    assert any(name.endswith(bad) for name in made.dropped[why]), made.dropped


@pytest.mark.parametrize(
    ("key", "record", "says"),
    [
        ("categories", {"id": 9}, r"categories\[2\] has no name; found {'id': 9}"),
        ("images", {"id": 9, "file_name": "x.png", "width": 6}, r"images\[6\] has no height"),
        ("annotations", None, r"annotations\[6\] has no image_id; found None"),
        ("annotations", {"image_id": [1], "category_id": 3}, r"annotations\[6\] has no image_id"),
    ],
)
def test_a_json_file_that_lacks_something_is_refused_by_name(tmp_path, key, record, says):
    root = make_coco(tmp_path / "from")
    path = root / "annotations" / "instances_train.json"
    content = json.loads(path.read_text())
    content[key].append(record)
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match=rf"instances_train\.json: {says}"):
        fiss.import_data("coco", root, tmp_path / "to")
    path.write_text("[" * 100_000)
    with pytest.raises(UserError, match=r"instances_train\.json: no json"):
        fiss.import_data("coco", root, tmp_path / "to")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["from"]


@pytest.mark.parametrize(
    ("outline", "why"),
    [
        ([[1, 2]], "an outline that cannot be drawn"),
        ("words", "an outline that cannot be drawn"),
        (5, "an outline that cannot be drawn"),
        ([[float("nan")] * 6], "an outline with coordinates that are no numbers"),
        ({"size": [4, 6], "counts": [3]}, "an outline whose runs do not fill its image"),
        ({"size": [4, 6], "counts": [-5, 29]}, "an outline whose runs do not fill its image"),
        ({"size": [4, 6], "counts": "zzzz"}, "an outline that cannot be drawn"),
    ],
)
def test_outlines_that_cannot_be_drawn(tmp_path, outline, why):
    root = make_coco(tmp_path / "from")
    path = root / "annotations" / "instances_train.json"
    content = json.loads(path.read_text())
    content["annotations"][0]["segmentation"] = outline
    path.write_text(json.dumps(content))
    made = fiss.import_data("coco", root, tmp_path / "to")
    assert [Path(name).name for name in made.dropped[why]] == ["a.png"]


def test_the_parts_of_the_source_are_kept(tmp_path):
    """By lists, and a test part, which is for validation only where there is no other."""
    root = scans(tmp_path / "from", 6)
    for name, stems in (("train", ["s4", "images/s1.png masks/s1.png"]), ("valid", ["s0.png"]), ("test", ["s2", "s3"])):
        (root / f"{name}.txt").write_text("\n".join(stems))
    made, *_ = imported("values", root, tmp_path / "a", **MAP)
    assert parts(tmp_path / "a") == [["s1", "s4"], ["s0"]]
    assert {why.split(" (")[0]: names for why, names in made.dropped.items()} == {
        "of the test part": ("s2", "s3"),
        "in neither part of the source": ("s5",),
    }
    made, *_ = imported("values", root, tmp_path / "b", validation=0.5, **MAP)
    assert (made.train + made.val, made.dropped) == (6, {})
    (root / "valid.txt").unlink()
    made, *_ = imported("values", root, tmp_path / "c", **MAP)
    assert parts(tmp_path / "c") == [["s1", "s4"], ["s2", "s3"]]
    assert list(made.notes) == ["the source has no validation part: its test part is for validation"]
    (root / "test.txt").write_text("images/s1.png")
    with pytest.raises(UserError, match=r"s1 is in train\.txt too"):
        fiss.import_data("values", root, tmp_path / "d", **MAP)


@pytest.mark.parametrize(("kind", "folder"), [("binary", "thing"), ("colour", "")])
def test_parts_by_folders(tmp_path, kind, folder):
    for name in ("train/a", "train/b", "val/c"):
        save(tmp_path / "from" / "images" / f"{name}.png", picture(2, 2))
        drawn = ids([255, 0], [0, 0])
        save(tmp_path / "from" / "masks" / folder / f"{name}.png", drawn if folder else drawn[..., None].repeat(3, 2))
    (tmp_path / "names.txt").write_text("background 0 0 0\nthing 255 255 255\n")
    options = {"classes": str(tmp_path / "names.txt")} if kind == "colour" else {}
    imported(kind, tmp_path / "from", tmp_path / "to", **options)
    assert parts(tmp_path / "to") == [["train_a", "train_b"], ["val_c"]]


def test_the_test_part_of_a_hugging_face_data_set_is_left_out(tmp_path):
    root = make(tmp_path / "from", "huggingface")
    (root / "data" / "train").mkdir(parents=True)
    (root / "a.parquet").rename(root / "data" / "train" / "0000.parquet")
    (root / "b.parquet").rename(root / "data" / "test-00000-of-00001.parquet")
    made, *_ = imported("huggingface", root, tmp_path / "to", map="1=thing")
    assert (made.train, made.val) == (2, 2)
    assert list(made.notes) == ["the source has no validation part: its test part is for validation"]
    (root / "data" / "valid-0.parquet").write_bytes((root / "data" / "train" / "0000.parquet").read_bytes())
    made, *_ = imported("huggingface", root, tmp_path / "with", map="1=thing")
    assert (made.train, made.val, [len(names) for names in made.dropped.values()]) == (2, 2, [2])


def test_pages_that_were_written_one_by_one(tmp_path):
    import tifffile

    for folder in ("images", "masks"):
        (tmp_path / "from" / folder).mkdir(parents=True)
        with tifffile.TiffWriter(tmp_path / "from" / folder / "a.tif") as file:
            for k in range(4):
                shape = (2, 2, 3) if folder == "images" else (2, 2)
                file.write(np.full(shape, k, np.uint8), photometric="rgb" if len(shape) == 3 else "minisblack")
    options = {"map": "1=b,2=c,3=d"}
    _, _, masks, images = imported("tiff", tmp_path / "from", tmp_path / "to", **options)
    assert [masks[f"a_000{k}"].tolist() for k in (1, 3)] == [[[1, 1]] * 2, [[3, 3]] * 2]
    assert images["a_0002"].tolist() == [[[2] * 3] * 2] * 2


def test_a_list_may_name_videos(tmp_path):
    root = tmp_path / "from"
    for name in "abc":
        scans(root, 2, f"clip-{name}")
    (root / "splits").mkdir()
    (root / "splits" / "train.txt").write_text("clip-a\nclip-c/s0\n")
    (root / "splits" / "val.txt").write_text("clip-b\nclip-c/s1\n")
    made, *_ = imported("video", root, tmp_path / "to", **MAP)
    assert parts(tmp_path / "to") == [["clip-a_s0", "clip-a_s1", "clip-c_s0"], ["clip-b_s0", "clip-b_s1", "clip-c_s1"]]
    assert made.notes == {writer.BOTH: ("clip-c_s1",)}


def test_a_single_group_is_split_within_and_said(tmp_path):
    root = scans(tmp_path / "from", 6, "clip")
    made, *_ = imported("video", root, tmp_path / "to", **MAP)
    assert parts(tmp_path / "to")[1] == ["clip_s5"]
    assert made.notes[writer.ONE_GROUP] == ("clip_s5",)
    scans(tmp_path / "one", 1)
    with pytest.raises(UserError, match=r"Only one image could be imported, and nothing was written\.$"):
        fiss.import_data("values", tmp_path / "one", tmp_path / "other", **MAP)
    assert not list(tmp_path.glob("other*"))


def test_volumes_of_one_patient_stay_in_one_part(tmp_path):
    import nibabel

    drawn = np.zeros((3, 3, 2), np.uint8)
    drawn[1, 1] = 1
    names = [f"sub-{k:02d}_ses-{s}_T1w" for k in range(6) for s in (1, 2)]
    names += [f"patient{k:03d}_frame{s}" for k in range(6) for s in (1, 9)] + ["anna/x", "anna/y", "x17-a", "x17-b"]
    for name in names:
        for folder in ("images", "masks"):
            path = tmp_path / "from" / folder / f"{name}.nii.gz"
            path.parent.mkdir(parents=True, exist_ok=True)
            nibabel.save(nibabel.Nifti1Image(drawn, np.eye(4)), path)
    made, *_ = imported("nifti", tmp_path / "from", tmp_path / "to", map="1=thing")
    of = [{name[: name.index("_")] for name in own if name[0] != "x"} for own in parts(tmp_path / "to")]
    assert len(of[0] | of[1]) == 13
    assert not of[0] & of[1]
    assert made.notes == {}
    imported("nifti", tmp_path / "from", tmp_path / "own", map="1=thing", group="(x17)|([^/]+)$")
    of = [{name[:3] for name in own if name[0] == "x"} for own in parts(tmp_path / "own")]
    assert sorted(map(len, of)) == [0, 1]
    with pytest.raises(UserError, match="no regular expression"):
        fiss.import_data("nifti", tmp_path / "from", tmp_path / "bad", map="1=thing", group="(")


def test_dicom_files_that_end_in_nothing(tmp_path):
    """Named by numbers, with a DICOMDIR and notes beside them; a patient that two studies show is one."""
    root, drawn = tmp_path / "from", ids([0, 128], [0, 0])
    for study, name in enumerate(("1.2.840.10", "1.2.840.20", "IM-3", "IM-4")):
        patient = "Anonymous" if study < 2 else "same"
        make_dicom(root / "images" / f"d{study}" / name, patient, study, 0, drawn * 9, StudyInstanceUID=f"1.9.{study}")
        save(root / "masks" / f"d{study}" / f"{name}.png", drawn)
    for name in ("DICOMDIR", "notes.txt", ".DS_Store"):
        (root / "images" / name).write_bytes(b"nothing")
    made, _, masks, _ = imported("dicom", root, tmp_path / "to", **MAP)
    assert sorted(masks) == [f"d{k}_0000" for k in range(4)]
    assert masks["d0_0000"].tolist() == [[0, 0, 1, 1], [0, 0, 0, 0]]
    assert made.dropped == {}
    assert dicom.NO_PATIENT in made.notes
    assert any({"d2_0000", "d3_0000"} <= set(own) for own in parts(tmp_path / "to"))


PLACES = {
    "cityscapes": ("leftImg8bit/train/x/{}_leftImg8bit", "gtFine/train/x/{}_gtFine_labelIds"),
    "video": ("images/clip{}/a", "masks/clip{}/a"),
    "values": ("JPEGImages/{}", "gt/{}"),
    "binary": ("images/{}", "masks/thing/{}"),
    "colour": ("images/{}", "masks/{}"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_of_another_kind_is_recognised_and_the_printed_command_imports_it(tmp_path, kind, monkeypatch):
    monkeypatch.chdir(tmp_path)
    root, drawn = tmp_path / "from", ids([0, 1], [2, 255])
    drawn = {"binary": 255 * (drawn > 0).astype(np.uint8), "colour": drawn[..., None] * ids([1, 0, 0])}.get(kind, drawn)
    for k in range(2) if kind in PLACES else ():
        image, mask = (place.format(k) for place in PLACES[kind])
        save(root / f"{image}.png", picture(2, 2, k))
        save(root / f"{mask}.png", ids([7, 8], [33, 0]) if kind == "cityscapes" else drawn)
    if kind not in PLACES:
        make(root, kind)
    (tmp_path / "colours.txt").write_text("background 0 0 0\na 1 0 0\nb 2 0 0\nvoid 255 0 0\n")
    with pytest.raises(UserError, match=f"`fiss data import {kind} ") as refused:
        fiss.propose(root)
    for call in (fiss.run, fiss.check_data):  # wherever a data set is asked for
        with pytest.raises(UserError) as again:
            call(root)
        assert str(again.value) == str(refused.value)
    (line,) = re.findall(r": `(fiss data import [^`]+)`", str(refused.value))
    command(*shlex.split(line)[1:])
    found = fiss.check_data(f"{root}-fiss")
    assert found.problems == ()
    assert len(found.dataset.train.stems) + len(found.dataset.val.stems) > 1


def test_a_folder_of_nothing_known(tmp_path):
    (tmp_path / "notes.txt").write_text("nothing")
    with pytest.raises(UserError, match="`fiss data import --help` says what else"):
        fiss.check_data(tmp_path)
    root = scans(tmp_path / "from")  # ours, but for its names
    with pytest.raises(UserError, match=r"classes\.txt .*`fiss data import values .*--map 128=class128,255=ignore`"):
        fiss.check_data(root)
    make_folder(tmp_path / "whole")
    with pytest.raises(UserError, match=r"whole is a folder and no preset\. `fiss start"):
        fiss.run(tmp_path / "whole")
