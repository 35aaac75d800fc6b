"""Round trips of every kind of data, on tiny samples made with the libraries of each, and what is wrong with files."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner
from worlds import picture, save

import fiss
from fiss.cli.main import app
from fiss.data.imports import KINDS, dicom, nifti, source, writer
from fiss.data.imports.source import Options, to_bytes
from fiss.errors import UserError
from fiss.progress import Progress


class Heard(Progress):
    def __init__(self):
        self.notices = []

    def notice(self, text):
        self.notices.append(text)


def imported(kind, root, dest, **options):
    """An import; what it says; and masks and images that `fiss` reads from its folder, by name."""
    heard = Heard()
    made = fiss.import_data(kind, root, dest, progress=heard, **options)
    found = fiss.check_data(dest)
    assert found.problems == ()
    read = {}
    for split in (found.dataset.train, found.dataset.val):
        read |= {name: split.read(i) for i, name in enumerate(split.stems)}
    assert (len(found.dataset.train.stems), len(found.dataset.val.stems)) == (made.train, made.val)
    assert found.dataset.classes == made.classes
    assert sorted(path.name for path in dest.parent.rglob("*.part")) == []
    assert all(sorted(p.stem for p in (dest / folder).iterdir()) == sorted(read) for folder in ("images", "masks"))
    return made, heard.notices, {k: v[1] for k, v in read.items()}, {k: v[0] for k, v in read.items()}


def parts(dest):
    return [(dest / f"{name}.txt").read_text().split() for name in ("train", "val")]


def ids(*rows):
    return np.array(rows, np.uint8)


def scans(root, count=6, folder=""):
    """Images with masks of 0, 128 and 255."""
    for k in range(count):
        save(root / "images" / folder / f"s{k}.png", picture(4, 3, k))
        save(root / "masks" / folder / f"s{k}.png", ids([0, 0, 128], [0, 128, 128], [255, 0, 0], [0, 0, k and 128]))
    return root


MAP = {"map": "128=tumour,255=ignore"}


def test_values(tmp_path):
    root = scans(tmp_path / "from")
    save(root / "images" / "wide.png", np.array([[0, 1000], [2000, 500]], np.uint16))
    save(root / "masks" / "wide.png", ids([0, 128], [128, 0]))
    save(root / "images" / "float.tif", np.array([[-1, 0], [0.5, 9]], np.float32))
    save(root / "masks" / "float.png", np.array([[True, False], [False, True]]))
    save(root / "images" / "more ../name.jpg", picture(2, 2))
    save(root / "masks" / "more ../name.png", ids([0, 128], [128, 0])[..., None].repeat(3, 2))
    save(root / "images" / "alone.png", picture(4, 3))
    save(root / "images" / "strange.png", picture(2, 2))
    save(root / "masks" / "strange.png", ids([0, 7], [128, 9]))
    save(root / "images" / "jpeg.png", picture(2, 2))
    save(root / "masks" / "jpeg.jpg", ids([0, 7], [128, 9]))
    save(root / "images" / "size.png", picture(2, 2))
    save(root / "masks" / "size.png", ids([0, 128]))
    save(root / "masks" / "broken.png", ids([0, 128]))
    (root / "images" / "broken.png").write_bytes((root / "images" / "s0.png").read_bytes()[:60])
    dest = tmp_path / "to"
    made, notices, masks, images = imported("values", root, dest, map="128=tumour,1=tumour,255=ignore", window="0,1000")
    assert made.classes == ("tumour",)
    assert masks["s0"].tolist() == [[0, 0, 1], [0, 1, 1], [255, 0, 0], [0, 0, 0]]
    assert masks["s1"].tolist()[3] == [0, 0, 1]
    assert masks["float"].tolist() == [[1, 0], [0, 1]]
    assert masks["more_name"].tolist() == [[0, 1], [1, 0]]
    assert images["wide"][..., 0].tolist() == [[0, 255], [255, 128]]
    assert (dest / "images" / "s0.png").read_bytes() == (root / "images" / "s0.png").read_bytes()
    dropped = {reason: tuple(Path(n).name for n in names) for reason, names in made.dropped.items()}
    assert dropped == {
        "a JPEG mask: its values at borders are invented; save masks as PNG": ("jpeg.jpg",),
        "a mask of another size than its image": ("size",),
        "no mask": ("alone",),
        "unreadable or truncated": ("broken.png",),
        "values that no class was given for": ("strange.png",),
    }
    assert len(notices) == 4
    assert any("strange.png: values that no class was given for (7, 9)" in text for text in notices)
    report = (dest / "import.md").read_text()
    assert "| no mask | 1 | alone |" in report
    assert "- dropped: 5" in report


def test_values_as_they_are_with_the_names_of_a_file(tmp_path):
    root = scans(tmp_path / "from", 4)
    for k in range(4):
        save(root / "masks" / f"s{k}.png", ids(*[[0, 1, 2 + (k == 3)]] * 4))
    (tmp_path / "names.txt").write_text("background\nnerve\nvein\n")
    made, _, masks, _ = imported("values", root, tmp_path / "to", classes=str(tmp_path / "names.txt"))
    assert (made.classes, masks["s1"].tolist()[0], sorted(masks)) == (("nerve", "vein"), [0, 1, 2], ["s0", "s1", "s2"])


def test_windows():
    grey = np.array([0, 50, 100, 1000], np.uint16)
    assert to_bytes(grey, Options(window="0,100")).tolist() == [0, 128, 255, 255]
    assert to_bytes(grey, Options(window="0%,100%")).tolist() == [0, 13, 26, 255]
    assert to_bytes(grey, Options(), (50.0, 100.0)).tolist() == [0, 0, 255, 255]
    assert to_bytes(np.array([7, 9], np.uint8), Options()).tolist() == [7, 9]
    assert to_bytes(np.array([np.nan, 1.0]), Options(window="-1,1")).tolist() == [128, 255]


def test_colours_with_and_without_a_palette(tmp_path):
    root = tmp_path / "from"
    (tmp_path / "names.csv").write_text(
        "name,r,g,b\nSky,128,0,0\nVoid,0,0,0\nroad #8040ff\nSky 9 9 9\nbackground 1 1 1\n"
    )
    sky, void, road, other, ground = [128, 0, 0], [0, 0, 0], [128, 64, 255], [9, 9, 9], [1, 1, 1]
    for k in range(3):
        save(root / "images" / f"c{k}.png", picture(2, 3, k))
    save(root / "masks" / "c0.png", ids([sky, void, road], [other, ground, sky]))
    coded = Image.fromarray(ids([0, 1, 2], [2, 1, 0]), "P")
    coded.putpalette([*road, *sky, *void])
    coded.save(root / "masks" / "c1.png")
    save(root / "masks" / "c2.png", ids([sky, void, road], [other, ground, [2, 3, 4]]))
    made, notices, masks, _ = imported("colour", root, tmp_path / "to", classes=str(tmp_path / "names.csv"))
    assert made.classes == ("Sky", "road")
    assert masks["c0"].tolist() == [[1, 255, 2], [1, 0, 1]]
    assert masks["c1"].tolist() == [[2, 1, 255], [255, 1, 2]]
    assert [Path(n).name for n in made.dropped["colours that no class was given for"]] == ["c2.png"]
    assert "(#020304)" in notices[0]
    (tmp_path / "bad.txt").write_text("sky 1 2 3\nroad 300 0 0\n")
    with pytest.raises(UserError, match=r"bad.txt, line 2: 'road 300 0 0'"):
        fiss.import_data("colour", root, tmp_path / "other", classes=str(tmp_path / "bad.txt"))


def test_binary_folders(tmp_path):
    root = tmp_path / "from"
    for k in range(4):
        save(root / "images" / f"b{k}.png", picture(2, 3, k))
    save(root / "masks" / "lesion" / "b0.png", ids([255, 255, 255], [255, 0, 0]))
    save(root / "masks" / "vessel" / "b0.png", ids([0, 0, 255], [0, 0, 255]))
    save(root / "masks" / "vessel" / "b1.png", ids([0, 1, 1], [0, 0, 0]))
    save(root / "masks" / "vessel" / "b2.png", ids([0, 7, 255], [0, 0, 0]))
    made, _, masks, _ = imported("binary", root, tmp_path / "to")
    assert made.classes == ("lesion", "vessel")
    assert masks["b0"].tolist() == [[1, 1, 2], [1, 0, 2]]  # the vessel has two pixels, the lesion four
    assert masks["b1"].tolist() == [[0, 2, 2], [0, 0, 0]]
    assert made.notes == {"objects overlap: the smaller one is on top": ("b0",)}
    assert made.dropped["no mask of any class"] == ("b3",)
    assert [Path(n).name for n in made.dropped["a mask of other values than 0 and 255"]] == ["b2.png"]


def make_coco(root):
    """Two json files with polygons, run lengths of both sorts, a crowd, an overlap, and what is wrong with some."""
    from pycocotools import mask as coco

    def image(i, name, part, height=4, width=6):
        if "/" not in name:
            save(root / part / name, picture(height, width, i))
        return {"id": i, "file_name": name, "height": height, "width": width}

    def one(i, category, outline, **more):
        return {"id": 10 * i + category, "image_id": i, "category_id": category, "segmentation": outline, **more}

    square = [[0, 0, 4, 0, 4, 4, 0, 4]]  # columns 0 to 3, all rows
    drawn = np.zeros((4, 6), np.uint8, order="F")
    drawn[1:3, 2:5] = 1
    packed = coco.encode(drawn)
    packed["counts"] = packed["counts"].decode()
    runs = {"size": [4, 6], "counts": [20, 4]}  # column by column: the last one
    train = {
        "images": [image(1, "a.png", "train"), image(2, "b.png", "train"), image(3, "c.png", "train"),
                   image(4, "../../etc/passwd", ""), image(5, "e.png", "train"), image(6, "f.png", "train")],
        "annotations": [one(1, 7, square), one(1, 3, packed), one(2, 3, runs),
                        one(2, 7, runs | {"counts": [0, 8, 12, 4]}, iscrowd=1),
                        one(5, 3, []), one(6, 3, {"size": [9, 9], "counts": [81]})],
        "categories": [{"id": 7, "name": "bus"}, {"id": 3, "name": "cat"}],
    }  # fmt: skip
    val = {"images": [image(9, "v.png", "val")], "annotations": [one(9, 7, square)], "categories": train["categories"]}
    for name, content in (("instances_train", train), ("instances_val", val), ("captions_val", {"images": []})):
        (root / "annotations").mkdir(parents=True, exist_ok=True)
        (root / "annotations" / f"{name}.json").write_text(json.dumps(content))
    return root


def test_coco(tmp_path):
    made, _, masks, _ = imported("coco", make_coco(tmp_path / "from"), tmp_path / "to")
    assert made.classes == ("cat", "bus")
    assert masks["a"].tolist() == [[2, 2, 2, 2, 0, 0], [2, 2, 1, 1, 1, 0], [2, 2, 1, 1, 1, 0], [2, 2, 2, 2, 0, 0]]
    assert masks["b"].tolist() == [[255, 255, 0, 0, 0, 1]] * 4
    assert (masks["c"] == 0).all()
    assert masks["v"].tolist() == [[2, 2, 2, 2, 0, 0]] * 4
    assert parts(tmp_path / "to") == [["a", "b", "c"], ["v"]]
    assert made.notes == {
        "crowds: ignored where no object is": ("b",),
        "no object: background throughout": ("c",),
        "objects overlap: the smaller one is on top": ("a",),
    }
    assert {reason: [Path(n).name for n in names] for reason, names in made.dropped.items()} == {
        "a name that leads out of the folder": ["passwd"],
        "an object without an outline, of which only the box is known": ["e.png"],
        "an outline of another size than its image": ["f.png"],
    }


def test_cityscapes(tmp_path):
    root = tmp_path / "from"
    for part, city in (("train", "aachen"), ("train", "bonn"), ("val", "ulm"), ("test", "berlin")):
        for k in range(2):
            name = f"{city}_{k:06d}_000019"
            save(root / "leftImg8bit" / part / city / f"{name}_leftImg8bit.png", picture(2, 4))
            if (city, k) != ("bonn", 1):
                labels = ids([0, 7, 33, 9], [5, 26, 24, 99 if (city, k) == ("bonn", 0) else 31])
                save(root / "gtFine" / part / city / f"{name}_gtFine_labelIds.png", labels)
    made, _, masks, _ = imported("cityscapes", root, tmp_path / "to")
    assert (len(made.classes), made.classes[0], made.classes[18]) == (19, "road", "bicycle")
    assert masks["ulm_000000_000019"].tolist() == [[255, 1, 19, 255], [255, 14, 12, 17]]
    assert (made.train, made.val) == (2, 2)
    assert made.dropped["of a part without labels"] == ("berlin_000000_000019", "berlin_000001_000019")
    assert made.dropped["no mask"] == ("bonn_000001_000019",)
    assert "bonn_000000" in made.dropped["values that no class was given for"][0]
    made, _, masks, _ = imported("cityscapes", root, tmp_path / "all", ids="all")
    assert masks["ulm_000000_000019"].tolist() == [[255, 4, 30, 6], [2, 23, 21, 28]]
    assert (len(made.classes), made.classes[3]) == (30, "road")


def test_tiff_of_many_pages(tmp_path):
    import tifffile

    root = tmp_path / "from"
    for folder in ("images", "masks"):
        (root / folder).mkdir(parents=True)
    stack = np.arange(4 * 6, dtype=np.uint16).reshape(4, 2, 3) * 100
    for name, pages in (("a", 4), ("b", 4), ("short", 3)):
        tifffile.imwrite(root / "images" / f"{name}.tif", stack, photometric="minisblack")
        labels = (stack[:pages] > 1000).astype(np.uint8) * 128
        tifffile.imwrite(root / "masks" / f"{name}.tif", labels, photometric="minisblack")
    (root / "images" / "bad.tif").write_bytes(b"II*\0nothing")
    (root / "masks" / "bad.tif").write_bytes(b"II*\0nothing")
    made, _, masks, images = imported("tiff", root, tmp_path / "to", window="0,2300", every=2, **MAP)
    assert sorted(masks) == ["a_0000", "a_0002", "b_0000", "b_0002"]
    assert masks["a_0000"].tolist() == [[0, 0, 0], [0, 0, 0]]
    assert masks["a_0002"].tolist() == [[1, 1, 1], [1, 1, 1]]
    assert images["a_0002"][..., 0].tolist() == [[133, 144, 155], [166, 177, 188]]  # 255 * 1200 / 2300 = 133
    reasons = ("image and mask of different numbers of pages: is one cut short?", "unreadable or truncated")
    assert [Path(made.dropped[why][0]).name for why in reasons] == ["short.tif", "bad.tif"]
    of = [{name[0] for name in names} for names in parts(tmp_path / "to")]
    assert sorted(map(sorted, of)) == [["a"], ["b"]]


def make_dicom(path, patient, series, z, values, **more):
    from pydicom.dataset import FileDataset, FileMetaDataset
    from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian

    head = FileMetaDataset()
    head.MediaStorageSOPClassUID, head.TransferSyntaxUID = CTImageStorage, ExplicitVRLittleEndian
    head.MediaStorageSOPInstanceUID = f"1.2.3.{series}.{z + 100}"
    file = FileDataset(str(path), {}, file_meta=head, preamble=bytes(128))
    file.SOPClassUID, file.SOPInstanceUID = CTImageStorage, head.MediaStorageSOPInstanceUID
    file.PatientID, file.SeriesInstanceUID, file.Modality = patient, f"1.2.3.{series}", "CT"
    file.Rows, file.Columns, file.SamplesPerPixel, file.PhotometricInterpretation = *values.shape, 1, "MONOCHROME2"
    file.BitsAllocated = file.BitsStored = 16
    file.HighBit, file.PixelRepresentation, file.RescaleSlope, file.RescaleIntercept = 15, 1, 1, -1024
    file.PixelSpacing, file.SliceThickness = [1.0, 2.0], 3.0  # rows 1 mm apart, columns 2 mm
    file.ImagePositionPatient, file.ImageOrientationPatient = [0, 0, z], [1, 0, 0, 0, 1, 0]
    for key, value in more.items():
        setattr(file, key, value)
    file.PixelData = values.astype(np.int16).tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    file.save_as(path, enforce_file_format=True)


def test_dicom_series(tmp_path):
    root = tmp_path / "from"
    for patient, series in ((1, 1), (1, 2), (2, 3), (3, 4)):
        for k in range(3):
            name = f"p{patient}/series{series}/i{k}"
            values = np.array([[0, 100], [200, 300]]) + 1024 + 1000 * k  # Hounsfield units, once 1024 is taken off
            make_dicom(root / "images" / f"{name}.dcm", f"name-{patient}", series, z=-6 * k, values=values)
            if (patient, k) != (3, 2):
                save(root / "masks" / f"{name}.png", ids([0, 128], [128 * (k == 0), 255]))
    (root / "images" / "p2" / "notes.dcm").write_bytes(b"nothing")
    made, _, masks, images = imported("dicom", root, tmp_path / "to", window="0,1000", **MAP)
    # the lowest slice comes first, i2; columns are twice as far apart as rows, so each is there twice
    assert masks["p1_series1_0000"].tolist() == [[0, 0, 1, 1], [0, 0, 255, 255]]
    assert masks["p1_series1_0002"].tolist() == [[0, 0, 1, 1], [1, 1, 255, 255]]
    assert images["p1_series1_0002"][:, [0, 3], 0].tolist() == [[0, 26], [51, 76]]  # 255 * 100 / 1000 = 25.5
    assert "p3_series4_0000" not in masks
    assert made.dropped["no mask"] == ("p3/series4_0000",)
    assert [Path(n).name for n in made.dropped["unreadable or truncated"]] == ["notes.dcm"]
    train, val = ({name[:2] for name in names} for names in parts(tmp_path / "to"))
    assert train
    assert val
    assert not train & val
    text = "".join(path.read_text() for path in (tmp_path / "to").glob("import.*"))
    assert "name-1" not in text
    assert "group" not in text  # a digest of a short number can be guessed
    _, _, masks, _ = imported("dicom", root, tmp_path / "side", axis=0, **MAP)
    # x = 0: y to the right (1 mm), z upwards (6 mm): a row of a slice is six pixels high
    assert masks["p1_series1_0000"].shape == (18, 2)
    assert masks["p1_series1_0000"][[0, 5, 6, 17]].tolist() == [[0, 1], [0, 1], [0, 0], [0, 0]]


def test_dicom_without_a_window_takes_the_one_in_the_file(tmp_path):
    root = tmp_path / "from"
    for k in (1, 2):
        window = {"WindowCenter": 100, "WindowWidth": 200, "PhotometricInterpretation": "MONOCHROME1"}
        values = np.array([[0, 50], [100, 400]]) + 1024
        make_dicom(root / "images" / f"q{k}" / "i.dcm", "", k, 0, values, PixelSpacing=[1, 1], **window)
        save(root / "masks" / f"q{k}" / "i.png", ids([0, 128], [0, 0]))
    made, _, _, images = imported("dicom", root, tmp_path / "to", **MAP)
    assert images["q1_0000"][..., 0].tolist() == [[255, 191], [127, 0]]  # inverted: high values are dark
    assert list(made.notes) == [dicom.NO_PATIENT]


def test_nifti_volumes(tmp_path):
    import nibabel

    root = tmp_path / "from"
    values = np.zeros((2, 3, 4), np.float32)  # x to the right of the patient, y to the front, z to the head
    values[0, 2, 3] = 1000
    labels = np.zeros((2, 3, 4), np.uint8)
    labels[0, 2, 3], labels[1, 0, 3] = 128, 255
    affine = np.diag([-1.0, 1.0, 2.0, 1.0])  # stored with x to the left
    for folder in ("imagesTr", "labelsTr"):
        (root / folder).mkdir(parents=True)
    for name in "ab":
        nibabel.save(nibabel.Nifti1Image(values[::-1], affine), root / "imagesTr" / f"{name}_0000.nii.gz")
        nibabel.save(nibabel.Nifti1Image(labels[::-1], affine), root / "labelsTr" / f"{name}.nii.gz")
    nibabel.save(nibabel.Nifti1Image(values, np.eye(4)), root / "imagesTr" / "c_0000.nii.gz")
    nibabel.save(nibabel.Nifti1Image(labels[:, :, :3], np.eye(4)), root / "labelsTr" / "c.nii.gz")
    (root / "imagesTr" / "d.nii").write_bytes(b"nothing")
    (root / "labelsTr" / "d.nii").write_bytes(b"nothing")
    made, _, masks, images = imported("nifti", root, tmp_path / "to", window="0,1000", **MAP)
    assert sorted(masks) == [f"{name}_0000_{k:04d}" for name in "ab" for k in range(4)]
    # seen from the feet, the front above: the patient's right is at the left of the picture
    assert masks["a_0000_0003"].tolist() == [[0, 1], [0, 0], [255, 0]]
    assert images["a_0000_0003"][..., 0].tolist() == [[0, 255], [0, 0], [0, 0]]
    assert [Path(n).name for n in made.dropped["a mask of another size than its volume"]] == ["c.nii.gz"]
    assert [Path(n).name for n in made.dropped["unreadable or truncated"]] == ["d.nii"]
    assert list(made.notes) == [nifti.EACH]
    train, val = ({name[0] for name in names} for names in parts(tmp_path / "to"))
    assert sorted([*train, *val]) == ["a", "b"]
    _, _, masks, _ = imported("nifti", root, tmp_path / "front", axis=1, **MAP)
    # z upwards, 2 mm, so every row twice; the foremost slice is the first
    assert masks["a_0000_0000"].tolist() == [[0, 1], [0, 1], *[[0, 0]] * 6]


def png(array):
    out = io.BytesIO()
    Image.fromarray(array).save(out, "png")
    return out.getvalue()


@pytest.mark.parametrize("ending", ["arrow", "parquet"])
def test_hugging_face(tmp_path, ending):
    import pyarrow
    import pyarrow.parquet

    root = tmp_path / "from"
    labels = ids([0, 1], [2, 255])
    for part, count in (("train", 3), ("validation", 2)):
        masks = [png(labels) for _ in range(count - 1)] + [b"nothing" if part == "train" else png(labels)]
        rows = [{"bytes": png(picture(2, 2, k)), "path": None} for k in range(count)]
        table = pyarrow.table({"image": rows, "annotation": [{"bytes": m, "path": "x.png"} for m in masks]})
        path = root / part / "data-0.arrow" if ending == "arrow" else root / "data" / f"{part}-0.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        if ending == "parquet":
            pyarrow.parquet.write_table(table, path, row_group_size=2)
        else:
            with pyarrow.OSFile(str(path), "wb") as out, pyarrow.ipc.new_stream(out, table.schema) as stream:
                stream.write_table(table, max_chunksize=2)
    (root / "id2label.json").write_text('{"0": "background", "1": "cup", "2": "pan", "255": "ignore"}')
    made, _, masks, images = imported("huggingface", root, tmp_path / "to")
    name = "validation_data-0" if ending == "arrow" else "data_validation-0"
    assert made.classes == ("cup", "pan")
    assert (made.train, made.val) == (2, 2)
    assert masks[f"{name}_000001"].tolist() == labels.tolist()
    assert (images[f"{name}_000001"] == picture(2, 2, 1)).all()
    assert "row 0 of block 1, annotation" in made.dropped["unreadable or truncated"][0]
    with pytest.raises(UserError, match="its columns are image, annotation; say which"):
        fiss.import_data("huggingface", root, tmp_path / "b", columns="photo,mask")


def test_frames_of_a_video_stay_in_one_part(tmp_path):
    root = tmp_path / "from"
    for name in "abcde":
        scans(root, 5, f"clip-{name}")
    (root / "masks" / "clip-a" / "s2.png").unlink()
    (root / "images" / "clip-b" / "s4.png").write_bytes(b"")
    made, _, masks, _ = imported("video", root, tmp_path / "to", every=2, **MAP)
    assert sorted(masks)[:5] == ["clip-a_s0", "clip-a_s4", "clip-b_s0", "clip-b_s2", "clip-c_s0"]
    assert made.dropped["no mask"] == ("clip-a/s2",)
    train, val = ({name[:6] for name in names} for names in parts(tmp_path / "to"))
    assert train
    assert val
    assert not train & val
    imported("video", root, tmp_path / "half", every=2, validation=0.9, **MAP)
    assert len({name[:6] for name in parts(tmp_path / "half")[1]}) > len(val)


def contents(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()
    }


@pytest.mark.parametrize("at", [1, 4, 7, 8, 10])
def test_killed_in_the_middle_and_gone_on_with_gives_the_same_bytes(tmp_path, monkeypatch, at):
    root = scans(tmp_path / "from")
    (root / "images" / "s3.png").write_bytes(b"")
    fiss.import_data("values", root, tmp_path / "whole", **MAP)
    real, count = Path.replace, 0

    def killed(self, target):
        nonlocal count
        count += 1
        if count > at:
            raise SystemExit
        return real(self, target)

    monkeypatch.setattr(writer, "AHEAD", 1)
    monkeypatch.setattr(Path, "replace", killed)
    dest = tmp_path / "killed"
    with pytest.raises(SystemExit):
        fiss.import_data("values", root, dest, **MAP)
    monkeypatch.setattr(Path, "replace", real)
    assert not dest.exists()
    half = tmp_path / "killed.part"
    with (half / "import.jsonl").open("a") as journal:
        journal.write('{"name": "s5", "gro')  # a line that was being written
    with pytest.raises(UserError, match=r"killed\.part is of another import"):
        fiss.import_data("values", root, dest, map="128=other,255=ignore")
    done = {path.name: path.stat().st_ino for path in (half / "masks").glob("*.png")}
    fiss.import_data("values", root, dest, **MAP)
    assert contents(dest) == contents(tmp_path / "whole")
    again = [name for name, inode in done.items() if (dest / "masks" / name).stat().st_ino != inode]
    assert len(again) <= 1  # what is whole is not made again
    assert not half.exists()


def test_a_place_that_is_taken_is_refused(tmp_path):
    root, dest = scans(tmp_path / "from"), tmp_path / "to"
    dest.mkdir()
    fiss.import_data("values", root, dest, **MAP)  # empty is as good as not there
    with pytest.raises(UserError, match=r"there already\. An import made it"):
        fiss.import_data("values", root, dest, **MAP)
    (tmp_path / "other" / "thesis").mkdir(parents=True)
    with pytest.raises(UserError, match=r"there already\. Choose another place"):
        fiss.import_data("values", root, tmp_path / "other", **MAP)
    with pytest.raises(UserError, match="choose a place outside"):
        fiss.import_data("values", root, root / "new", **MAP)
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["thesis"]


def test_where_all_are_bad_nothing_is_left(tmp_path):
    root = scans(tmp_path / "from")
    with pytest.raises(UserError, match=r"Nothing could be imported.*no class was given for: .*s0.png.* and 3 more"):
        fiss.import_data("values", root, tmp_path / "to", map="7=x")
    (tmp_path / "empty" / "images").mkdir(parents=True)
    (tmp_path / "empty" / "masks").mkdir()
    with pytest.raises(UserError, match="no image was found"):
        fiss.import_data("values", tmp_path / "empty", tmp_path / "to", **MAP)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "from"]


@pytest.mark.parametrize(
    ("kind", "options", "says"),
    [
        ("value", {}, "Did you mean 'values'"),
        ("values", {"mapp": "1=a"}, "Did you mean 'map'"),
        ("values", {}, "Say what the values of the masks mean"),
        ("values", {"map": "tumour"}, "is not VALUE=NAME"),
        ("values", {"map": "1=a", "window": "9,3"}, "--window 9,3: must be LOW,HIGH"),
        ("values", {"map": "1=a", "window": "1%,200%"}, "--window"),
        ("values", {"map": "1=a", "validation": 1.0}, "between 0 and 1"),
        ("values", {"map": "1=a", "every": 0}, "every = 0: must be 1 or more"),
        ("values", {"map": "1=a", "axis": 3}, "must be 0, 1 or 2"),
        ("values", {"map": "1=a", "masks": "/no/such"}, "say where they are with --masks"),
        ("colour", {}, "Say what the colours mean"),
        ("coco", {}, "no json file with images"),
        ("cityscapes", {}, "expected leftImg8bit/ and gtFine/"),
        ("cityscapes", {"ids": "some"}, "choice of ids"),
        ("huggingface", {}, r"no \.arrow or \.parquet files"),
        ("dicom", {"map": "1=a"}, "no DICOM files"),
    ],
)
def test_what_a_user_can_put_right(tmp_path, kind, options, says):
    root = scans(tmp_path / "from", 1)
    with pytest.raises(UserError, match=says):
        fiss.import_data(kind, root, tmp_path / "to", **options)
    assert not (tmp_path / "to.part").exists()


def test_a_library_that_is_not_installed(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pydicom", None)
    with pytest.raises(UserError, match=r'pip install "fiss\[dicom\]"'):
        source.library("pydicom", "dicom")


def test_the_command_line(tmp_path):
    root = scans(tmp_path / "from")
    (root / "masks" / "s2.png").unlink()
    shown = CliRunner().invoke(app, ["data", "import", "--help"]).output
    assert all(f"{kind}: " in shown for kind in KINDS)
    words = ["data", "import", "values", str(root), str(tmp_path / "to"), "--map", MAP["map"]]
    ran = CliRunner().invoke(app, words)
    assert ran.exit_code == 0, ran.output
    assert "no mask" in ran.output
    assert f"Next: fiss data check {tmp_path / 'to'}" in ran.output
