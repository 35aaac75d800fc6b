import hashlib
import os
import re
from dataclasses import replace
from multiprocessing import get_context

import numpy as np
import pytest
from PIL import ExifTags, Image
from worlds import make_ade, make_folder, make_voc, mask, picture, save

from fiss.data import index as indexing
from fiss.data.cache import Decoded
from fiss.data.index import build, check
from fiss.data.reading import Reading
from fiss.data.sources import DataSpec, open_dataset, recognise
from fiss.errors import UserError
from fiss.progress import Progress


class Counting(Progress):
    def __init__(self):
        self.read = 0

    def advance(self, done=1):
        self.read += done


def test_voc_with_augmented_masks(tmp_path):
    make_voc(tmp_path)
    for root in (tmp_path, tmp_path / "VOCdevkit", tmp_path / "VOCdevkit" / "VOC2012"):
        data = open_dataset(recognise(root))
        assert data.name == "voc"
        assert not data.notices
        assert data.train.stems == ("2007_000000", "2007_000001", "2007_000002", "2007_000003")
    image, labels = data.train.read(2)
    assert image.shape == (40, 48, 3)
    assert sorted(np.unique(labels)) == [0, 3]
    train, _ = check(data)
    assert train.presence[:, 1:5].tolist() == np.eye(4, dtype=bool).tolist()


def test_voc_without_augmented_masks_falls_back_and_says_so(tmp_path):
    data = open_dataset(recognise(make_voc(tmp_path, aug=False)))
    assert data.train.stems == ("2007_000000", "2007_000001")
    assert "SegmentationClassAug/ is not there" in data.notices[0]
    _, labels = data.train.read(1)
    assert sorted(np.unique(labels)) == [0, 2, 255]  # an indexed PNG gives ids, not colours


def test_ade20k(tmp_path):
    data = open_dataset(recognise(make_ade(tmp_path)))
    assert len(data.classes) == 150
    assert (data.classes[0], data.classes[149]) == ("wall", "flag")
    train, val = check(data)
    assert (len(data.train.stems), len(data.val.stems)) == (4, 2)
    assert train.presence[:, 150].all()
    assert val.presence[1, 2]


def test_folder_with_and_without_split_files(tmp_path):
    data = open_dataset(recognise(make_folder(tmp_path)))
    assert data.classes == ("thing1", "thing2", "thing3")
    assert (len(data.train.stems), len(data.val.stems)) == (7, 3)
    (tmp_path / "train.txt").unlink()
    with pytest.raises(UserError, match="give both or neither"):
        open_dataset(DataSpec("folder", str(tmp_path)))
    (tmp_path / "val.txt").unlink()
    (tmp_path / "classes.txt").write_text("background\nthing1\nthing2\nthing3\n")
    data = open_dataset(DataSpec("folder", str(tmp_path)))
    assert data.classes == ("thing1", "thing2", "thing3")
    assert set(data.train.stems) | set(data.val.stems) == {f"p{k}" for k in range(10)}
    assert re.search(r"about a fifth .*: \d of 10", data.notices[0])


def test_files_of_a_folder_that_are_left_out_are_said(tmp_path):
    root = make_folder(tmp_path)
    for name in ("images/scan.gif", "masks/scan.png", "masks/.hidden", "masks/p0.png.bak"):
        (root / name).write_bytes(b"")
    for name in "abcdefghijk":
        (root / "images" / f"{name}.txt").write_text("")
    listed = open_dataset(recognise(root))
    images, masks = (notice.split(" so left out: ") for notice in listed.notices)
    assert images[0].startswith(f"{root / 'images'}: of no kind that is read (.jpg, ")
    assert masks[0].startswith(f"{root / 'masks'}: of no kind that is read (.jpg, ")
    assert images[1] == f"{', '.join(f'{name}.txt' for name in 'abcdefghij')} and 2 more."
    assert masks[1] == "p0.png.bak."
    for name in ("train.txt", "val.txt"):
        (root / name).unlink()
    assert open_dataset(recognise(root)).notices[-1].endswith("masks: without an image, so left out: scan.png.")


def test_the_index_is_read_once_and_again_when_a_file_changes(tmp_path):
    data = open_dataset(recognise(make_folder(tmp_path)))
    first, again, changed = Counting(), Counting(), Counting()
    one = build(data.train, data.classes, first)
    two = build(data.train, data.classes, again)
    assert (first.read, again.read) == (7, 0)
    assert (one.pixels == two.pixels).all()
    assert one.pixels[0].tolist() == [16 * 40, 16 * 40, 0, 0]
    save(tmp_path / "masks" / "p0.png", mask(0, 2))
    os.utime(tmp_path / "masks" / "p0.png", ns=(1, 1))
    three = build(data.train, data.classes, changed)
    assert changed.read == 7
    assert three.presence[0].tolist() == [True, False, True, False]


def test_many_images_are_read_a_few_at_a_time(tmp_path, monkeypatch):
    root = make_folder(tmp_path)
    data = open_dataset(recognise(root))
    assert list(data.train.images[2:4]) == [root / "images" / "p2.png", root / "images" / "p3.png"]
    whole = build(data.train, data.classes)
    monkeypatch.setattr(indexing, "AHEAD", 3)
    monkeypatch.setenv("FISS_CACHE", str(tmp_path / "cache"))
    told = Counting()
    parts = build(data.train, data.classes, told)
    assert told.read == 7
    assert (parts.pixels == whole.pixels).all()
    assert parts.pixels[6].tolist() == [640, 640, 0, 0]


def test_a_damaged_cache_is_made_again(tmp_path):
    data = open_dataset(recognise(make_folder(tmp_path / "d")))
    build(data.train, data.classes)
    for path in indexing.cache_folder().glob("*.npz"):
        path.write_bytes(path.read_bytes()[:-40] + bytes(40))
    again = Counting()
    build(data.train, data.classes, again)
    assert again.read == 7


def test_a_cache_that_cannot_be_written_does_no_harm(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FISS_CACHE", str(tmp_path / "file"))
    data = open_dataset(recognise(make_folder(tmp_path / "d")))
    assert build(data.train, data.classes).presence.any()


def as_shown(path, array, orientation):
    """A file that stores the array turned, and says in its EXIF data how to turn it back."""
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    back = Image.Transpose.ROTATE_90 if orientation == 6 else Image.Transpose.ROTATE_180
    Image.fromarray(array).transpose(back).save(path, exif=exif)


@pytest.mark.parametrize("ending", ["jpg", "png", "webp", "tif"])
def test_photos_and_masks_are_read_as_they_are_shown(tmp_path, ending):
    root = make_folder(tmp_path)
    shown = np.repeat(np.repeat(picture(5, 6), 8, 0), 8, 1)
    for name, orientation in (("p0", 6), ("p1", 3)):
        (root / "images" / f"{name}.png").unlink()
        as_shown(root / "images" / f"{name}.{ending}", shown, orientation)
    as_shown(root / "masks" / "p1.png", mask(0, 1, 2), 3)
    data = open_dataset(recognise(root))
    index = build(data.train, data.classes)
    assert index.problems == ()
    assert index.sizes[:2].tolist() == [[40, 48], [40, 48]]
    for i, labels in ((0, mask(0, 1, 255)), (1, mask(0, 1, 2))):
        image, read = data.train.read(i)
        assert np.abs(image[4::8, 4::8].astype(int) - shown[4::8, 4::8]).mean() < 40  # JPEG and WebP lose something
        assert (read == labels).all()
        assert (Reading().read(data.train.images[i]) == image).all()


def test_a_mask_of_the_photo_as_it_is_stored_is_told_from_one_of_another_size(tmp_path):
    root = make_folder(tmp_path)
    as_shown(root / "images" / "p0.png", picture(), 6)
    save(root / "masks" / "p0.png", mask(0, 1, height=48, width=40))
    as_shown(root / "images" / "p1.png", picture(), 6)
    save(root / "masks" / "p1.png", mask(0, 1, height=47, width=40))
    split = open_dataset(recognise(root)).train
    for i, says in (
        (0, r"mask is .* \(40x48, its image 48x40\); draw .* as it is shown"),
        (1, r"image 48x40\)\.$"),
    ):
        with pytest.raises(UserError, match=says):
            split.read(i)


def test_exif_data_that_nobody_can_read_turn_nothing(tmp_path):
    path = tmp_path / "p.png"
    Image.fromarray(picture()).save(path, exif=b"Exif\0\0no such thing")
    assert (Reading().read(path) == picture()).all()
    assert (Reading().read(save(path, picture())) == picture()).all()


def test_an_index_of_an_earlier_version_is_made_again(tmp_path):
    """Sizes in it are those of photos as they are stored."""
    data = open_dataset(recognise(make_folder(tmp_path / "d")))
    key = f"1\0train\0{len(data.classes)}\0{data.train.fingerprint()}"
    old = indexing.cache_folder() / f"index-{hashlib.sha256(key.encode()).hexdigest()[:32]}.npz"
    old.parent.mkdir(exist_ok=True)
    np.savez_compressed(old, pixels=np.zeros((7, 4), np.int64), sizes=np.full((7, 2), 9))
    assert build(data.train, data.classes).sizes.tolist() == [[40, 48]] * 7


def test_every_problem_is_named(tmp_path):
    root = make_folder(tmp_path)
    (root / "images" / "p0.png").write_bytes(b"not an image")
    truncated = (root / "images" / "p1.png").read_bytes()
    (root / "images" / "p1.png").write_bytes(truncated[: len(truncated) // 2])
    save(root / "masks" / "p2.png", mask(0, 1, height=20))
    save(root / "masks" / "p3.png", mask(0, 1, 9))
    save(root / "masks" / "p4.png", picture())
    Image.fromarray(np.zeros((40, 48), np.uint16)).save(root / "masks" / "p5.png")
    (root / "masks" / "p6.png").unlink()
    save(root / "images" / "p7.jpg", picture())
    (root / "val.txt").write_text("p7\np8\np8\nabsent\n")
    data = open_dataset(DataSpec("folder", str(root)))
    with pytest.raises(UserError, match="nothing was started") as caught:
        check(data)
    text = str(caught.value)
    for says in (
        "p2.png: mask is of another size than its image (48x20, its image 48x40)",
        "p3.png: mask ids outside 0 to 3 (255 is ignored): 9. Name more classes in classes.txt",
        "masks/p4.png: RGB colour mask",
        "masks/p5.png: 16-bit or wider mask",
        "2 files: missing mask (p6.png, absent.png)",
        "p7.png: duplicate stem",
        "p8: listed several times in val (2 times, duplicate stem)",
        "absent.jpg: missing image",
    ):
        assert says in text, says
    assert "11 problem(s)" in text
    assert "2 files: unreadable or truncated image (p0.png, p1.png); the first: (" in text


def test_a_problem_put_right_is_gone(tmp_path):
    root = make_folder(tmp_path)
    save(root / "images" / "p0.webp", picture())
    data = open_dataset(DataSpec("folder", str(root)))
    with pytest.raises(UserError, match="duplicate stem"):
        check(data)
    (root / "images" / "p0.webp").unlink()
    check(data)
    save(root / "images" / "p1.webp", picture())  # though the index is cached by now
    with pytest.raises(UserError, match="duplicate stem"):
        check(data)


def test_wide_images_and_shared_images_are_problems(tmp_path):
    root = make_folder(tmp_path)
    Image.fromarray(np.full((40, 48), 30000, np.uint16)).save(root / "images" / "p0.png")
    (root / "val.txt").write_text("p7\np8\np1\n")
    with pytest.raises(UserError) as caught:
        check(open_dataset(DataSpec("folder", str(root))))
    assert "p0.png: 16-bit or wider image" in str(caught.value)
    assert "p1: in the training and in the validation list" in str(caught.value)


def test_text_files_as_people_save_them(tmp_path):
    root = make_folder(tmp_path)
    save(root / "images" / "a b.png", picture())
    save(root / "masks" / "a b.png", mask(0, 1))
    (root / "classes.txt").write_bytes("\ufeffbackground\r\nthing1\r\nthing2\r\nthing3\r\n".encode())
    (root / "train.txt").write_bytes("\ufeffa b\r\np1.png\r\n".encode())
    data = open_dataset(DataSpec("folder", str(root)))
    assert data.classes == ("thing1", "thing2", "thing3")
    assert data.train.stems == ("a b", "p1")
    check(data)
    for content, says in ((b"\xff\xfe\x00", "unreadable text"), (b"a\nbackground\n", "can only be the first line")):
        (root / "classes.txt").write_bytes(content)
        with pytest.raises(UserError, match=says):
            open_dataset(DataSpec("folder", str(root)))


def test_an_empty_split_is_a_problem(tmp_path):
    root = make_folder(tmp_path)
    (root / "val.txt").write_text("\n")
    with pytest.raises(UserError, match="val: empty split"):
        check(open_dataset(DataSpec("folder", str(root))))


def test_many_problems_are_cut_short(tmp_path):
    root = make_folder(tmp_path, count=40)
    for path in (root / "masks").iterdir():
        path.unlink()
    with pytest.raises(UserError, match=r"40 files: missing mask \(p0.png, p1.png, p2.png and 37 more\)"):
        check(open_dataset(DataSpec("folder", str(root))))


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (DataSpec("voc"), "data.root is empty"),
        (DataSpec("voc", "/no/such/place"), "no such folder"),
    ],
)
def test_missing_roots(spec, says):
    with pytest.raises(UserError, match=says):
        open_dataset(spec)


def test_wrong_roots(tmp_path):
    for name, says in (("voc", "No VOC 2012 at"), ("ade20k", "No ADE20k at"), ("folder", "images .* is not there")):
        with pytest.raises(UserError, match=says):
            open_dataset(DataSpec(name, str(tmp_path)))
    with pytest.raises(UserError, match="no data set known here"):
        recognise(tmp_path)
    with pytest.raises(UserError, match="no such folder"):
        recognise(tmp_path / "absent")
    with pytest.raises(UserError, match="Did you mean 'shapes'"):
        DataSpec("shape")
    with pytest.raises(UserError, match="shapes_size"):
        replace(DataSpec(), shapes_size=8)


def test_bad_class_files(tmp_path):
    root = make_folder(tmp_path)
    for text in ("", "a\na\n", "\n".join(map(str, range(255)))):
        (root / "classes.txt").write_text(text)
        with pytest.raises(UserError, match="different class names"):
            open_dataset(DataSpec("folder", str(root)))


class Counted:
    """Five images of different sizes; counts how often each is read."""

    name, stems = "train", tuple("abcde")
    sizes = np.array([[4, 6], [5, 5], [3, 8], [6, 6], [2, 2]])

    def __init__(self):
        self.reads = []

    def read(self, i):
        self.reads.append(i)
        height, width = self.sizes[i]
        return np.full((height, width, 3), i + 1, np.uint8), np.full((height, width), 10 + i, np.uint8)

    def fingerprint(self):
        return "counted"


def test_decoded_images_are_read_once_as_far_as_they_fit():
    split = Counted()
    decoded = Decoded(split, split.sizes, 4 * (24 + 25 + 24) + 5)  # three fit, the fourth does not
    assert decoded.bytes_kept == 4 * (24 + 25 + 24)
    assert (decoded.name, decoded.stems, decoded.fingerprint()) == ("train", split.stems, "counted")
    for _ in range(3):
        for i in (4, 2, 0, 3, 1):
            image, mask = decoded.read(i)
            assert (image.shape, mask.shape) == ((*split.sizes[i], 3), tuple(split.sizes[i]))
            assert (image == i + 1).all()
            assert (mask == 10 + i).all()
    assert sorted(split.reads) == [0, 1, 2, 3, 3, 3, 4, 4, 4]
    none = Decoded(split, split.sizes, 0)
    assert none.bytes_kept == 0
    assert (none.read(0)[0] == 1).all()


def test_decoded_images_are_shared_with_forked_processes():
    split = Counted()
    decoded = Decoded(split, split.sizes, 10**6)
    child = get_context("fork").Process(target=decoded.read, args=(1,))
    child.start()
    child.join()
    image, _ = decoded.read(1)
    assert (image == 2).all()
    assert split.reads == []  # the child has read it
    with pytest.raises(ValueError, match="read-only"):
        image[0] = 0


def test_a_file_that_changed_its_size_is_read_as_it_is():
    split = Counted()
    decoded = Decoded(split, split.sizes + 1, 10**6)
    for _ in range(2):
        image, mask = decoded.read(3)
        assert image.shape == (6, 6, 3)
        assert (mask == 13).all()
