"""What can be read and is seldom meant: each mistake in a small data set, and the line that is said of it."""

import base64
import contextlib
import io
import re
import shlex
import shutil
import zlib

import numpy as np
import pytest
from command_line import fiss as command
from PIL import Image
from worlds import make_folder, mask, picture, save

from fiss.data.findings import grouped, one_task
from fiss.data.index import build, check, inspect
from fiss.data.reading import Problem
from fiss.data.sources import check_data, open_dataset, recognise
from fiss.data.summary import alike, code_of, digest_of
from fiss.errors import UserError
from fiss.predict.palette import colours_of
from fiss.progress import Progress
from fiss.reports import sheet


def said(root):
    return [str(finding) for finding in inspect(open_dataset(recognise(root))).suspicions]


def mended(line, root):
    """The masks after the command that a line prints was given as it stands there; and the classes."""
    (text,) = re.findall(r"`(fiss data import [^`]+)`", line)
    command(*shlex.split(text)[1:])
    made = open_dataset(recognise(root.with_name(f"{root.name}-mended")))
    assert inspect(made).problems == ()
    splits = made.train, made.val
    return {s: split.read(i)[1] for split in splits for i, s in enumerate(split.stems)}, made.classes


def masks(root, draw, count=10):
    """Every mask of a small data set drawn anew by its number."""
    make_folder(root, count)
    for k in range(count):
        save(root / "masks" / f"p{k}.png", draw(k))
    return root


def blob(inside, outside=0, side=16):
    """A square in the middle."""
    drawn = np.full((40, 48), outside, np.uint8)
    drawn[20 - side // 2 : 20 + side // 2, 24 - side // 2 : 24 + side // 2] = inside
    return drawn


def test_a_good_data_set_has_nothing_suspicious(tmp_path):
    make_folder(tmp_path, 30)
    for k in range(30):  # three objects of different classes, ignored seams, background all round
        drawn = blob(1 + k % 3)
        drawn[4:10, 4:20], drawn[30:36, 4:20], drawn[10, 4:20] = 1 + (k + 1) % 3, 1 + (k + 2) % 3, 255
        save(tmp_path / "masks" / f"p{k}.png", drawn)
    assert said(tmp_path) == []


def test_masks_of_0_and_255_are_refused(tmp_path):
    """As hospitals save them: read as they are, every lesion would be ignored."""
    root = masks(tmp_path / "a data set", lambda k: blob(255))
    (root / "classes.txt").write_text("big, bad lesion\n")
    with pytest.raises(
        UserError, match="all masks hold only 0 and 255: 255 is ignored, so none shows big, bad lesion"
    ) as caught:
        check(open_dataset(recognise(root)))
    made, classes = mended(str(caught.value), root)
    assert (made["p3"] == blob(1)).all()
    assert classes == ("big  bad lesion",)  # names in --map are separated by commas
    assert (root.with_name("a data set-mended") / "val.txt").read_text() == "p7\np8\np9\n"


def test_masks_without_any_class_are_refused(tmp_path):
    masks(tmp_path, lambda k: blob(0))
    with pytest.raises(UserError, match="all masks hold only 0"):
        check(open_dataset(recognise(tmp_path)))


def test_some_masks_of_0_and_255_among_others(tmp_path):
    root = masks(tmp_path / "data", lambda k: blob(255) if k in (2, 5, 6) else blob(1 + k % 3))
    (line,) = (line for line in said(root) if line.startswith("3 masks hold only 0 and 255 (p2, p5, p6), so no class."))
    made, classes = mended(line, root)
    assert classes == ("thing1", "thing2", "thing3", "object")
    assert ((made["p2"] == blob(4)).all(), (made["p3"] == blob(1)).all()) == (True, True)


def test_ids_from_0_with_void_last_as_camvid_has_them(tmp_path):
    """Sky is 0, so it is read as background, and every name goes to the class after its own."""
    names = ["sky", "building", "road", "car"]  # and void, 4

    def scene(k):
        drawn = np.repeat(np.array([0, 0, 1, 1, 2, 2, 2, 2], np.uint8), 5)[:, None].repeat(48, 1)
        drawn[20:30, 4 * k : 4 * k + 6], drawn[18:20, 10:20] = 3, 4
        return drawn

    root = masks(tmp_path / "camvid", scene)
    (root / "classes.txt").write_text("\n".join(names))
    (line,) = (line for line in said(root) if "never reaches" in line)
    assert line.startswith("Id 0, taken for background, never reaches the bottom of an image, so it may be a class")
    assert "--map 0=sky,1=building,2=road,3=car,4=ignore`" in line
    made, classes = mended(line, root)
    assert classes == tuple(names)
    assert (made["p4"] == np.where(scene(4) == 4, 255, scene(4) + 1)).all()
    (root / "classes.txt").write_text("\n".join([*names, "void"]))  # with a name for void
    assert any(
        "Ids 0 to 4 are in the masks and 5 is not, so names may be shifted by one." in line for line in said(root)
    )
    for k in range(10):
        save(root / "masks" / f"p{k}.png", scene(k) + 1)
    (line,) = (line for line in said(root) if line.startswith("void (id 5) is learnt like any class."))
    shutil.rmtree(root.with_name("camvid-mended"))
    made, classes = mended(line, root)
    assert classes == tuple(names)
    assert (made["p4"] == np.where(scene(4) == 4, 255, scene(4) + 1)).all()


def test_ids_that_are_one_too_high(tmp_path):
    """Class 1 is 2 in the masks, and so on: the names are right, the ids are not."""
    root = masks(tmp_path / "data", lambda k: np.where(mask(0, 255) == 255, 255, blob(2 + k % 3)).astype(np.uint8))
    (line,) = map(str, inspect(open_dataset(recognise(root))).findings)
    assert "Ids seem shifted by one, for 1 never occurs and 4 does: `fiss data import values" in line
    assert "--map 2=thing1,3=thing2,4=thing3,255=ignore`" in line
    made, classes = mended(line, root)
    assert classes == ("thing1", "thing2", "thing3")
    assert set(np.unique(made["p0"])) | set(np.unique(made["p2"])) == {0, 1, 3, 255}
    save(root / "masks" / "p9.png", blob(1))  # so they are not
    assert "Name more classes in classes.txt" in str(inspect(open_dataset(recognise(root))).findings[0])


def test_a_class_that_is_everywhere_as_a_background_is(tmp_path):
    root = masks(tmp_path / "data", lambda k: blob(2 + k % 2, outside=1))
    what = "thing1 (id 1) is 87 % of the pixels and in nearly every image, as a background is."
    (line,) = (line for line in said(root) if line.startswith(what))
    made, classes = mended(line, root)
    assert classes == ("thing2", "thing3")
    assert (made["p3"] == blob(2)).all()


def test_masks_that_went_through_a_jpeg(tmp_path):
    """Told by what is in the file, whatever it is called."""
    root = make_folder(tmp_path)
    for k in (1, 2):
        Image.fromarray(blob(40 * k)).save(root / "masks" / f"p{k}.png", "JPEG", quality=60)
    Image.fromarray(mask(0, 1)).save(root / "masks" / "p3.png", "JPEG", quality=100)  # happens to keep its ids
    found = inspect(open_dataset(recognise(root)))
    (problem,) = found.findings
    assert str(problem).startswith("2 files: mask saved as JPEG, which invents ids outside 0 to 3")
    assert "(p1.png, p2.png)" in str(problem)
    assert any(str(one).startswith("3 masks are JPEG files") for one in found.suspicions)


def test_masks_of_one_bit(tmp_path):
    root = make_folder(tmp_path)
    Image.fromarray(blob(1) > 0).save(root / "masks" / "p4.png")
    assert Image.open(root / "masks" / "p4.png").mode == "1"
    assert any("1 masks have one bit per pixel, so white is class 1 (thing1) (p4)" in line for line in said(root))


def test_ids_that_are_a_value_map(tmp_path):
    root = masks(tmp_path / "data", lambda k: np.where(blob(1) > 0, 128, mask(0, 255)).astype(np.uint8))
    (root / "classes.txt").write_text("liver\ntumour\n")
    found = inspect(open_dataset(recognise(root)))
    assert "if these are grey values that stand for classes: `fiss data import values" in found.problems[0]
    (line,) = map(str, found.findings)  # and not that 255 alone is a class
    assert "more); the first: 128. If these" in line
    assert line.count("--map 128=liver,255=tumour`") == 1
    made, classes = mended(line, root)
    assert (classes, made["p3"][20, [0, 20, 40]].tolist()) == (("liver", "tumour"), [0, 1, 2])
    (root / "classes.txt").write_text("\n".join(f"c{i}" for i in range(200)))  # with so many names they are ids
    for k in range(10):
        save(root / "masks" / f"p{k}.png", mask(0, 50, 100))
    (line,) = (line for line in said(root) if line.startswith("Only every 50th id is used (50, 100)."))
    shutil.rmtree(root.with_name("data-mended"))
    assert mended(line, root)[0]["p3"][0, [0, 20, 40]].tolist() == [0, 1, 2]


def test_ids_without_a_name_can_be_ignored(tmp_path):
    """Those of validation masks too, and where the other masks show other ones."""
    root = masks(tmp_path / "data", lambda k: mask(0, 1 + k % 3, 7 if k == 2 else 9 if k == 8 else 1))
    found = inspect(open_dataset(recognise(root)))
    (line,) = {str(finding).split(". Name more")[1] for finding in found.findings}
    assert mended(line, root)[0]["p8"][0, [0, 20, 40]].tolist() == [0, 3, 255]


def test_files_of_another_sort_are_mended_as_a_whole(tmp_path):
    """Masks of 16 bits, in colours, and TIFF files of pages: each line has a command that mends it."""
    wide = masks(tmp_path / "wide", lambda k: mask(0, 1 + k % 3).astype(np.uint16))
    assert (mended(str(inspect(open_dataset(recognise(wide))).findings[0]), wide)[0]["p4"] == mask(0, 2)).all()
    red = masks(tmp_path / "red", lambda k: np.stack([200 * mask(0, 1), *[mask(0, 0)] * 2], -1))
    (line,) = map(str, inspect(open_dataset(recognise(red))).findings)
    (tmp_path / "colours.txt").write_text("background 0 0 0\nred 200 0 0\n")
    assert "where each line of colours.txt is a name and R G B" in line
    with contextlib.chdir(tmp_path):
        assert (mended(line, red)[0]["p4"] == mask(0, 1)).all()
    pages = make_folder(tmp_path / "pages")
    for folder in ("images", "masks"):
        for k in range(10):
            (pages / folder / f"p{k}.png").unlink()
            many = [Image.fromarray(mask(k % 3, 1 + page)) for page in range(3)]
            many[0].save(pages / folder / f"p{k}.tif", save_all=True, append_images=many[1:])
    (line,) = map(str, inspect(open_dataset(recognise(pages))).findings)
    assert line.startswith("20 files: TIFF of several pages, of which the first would be read (p0.tif, p0.tif")
    assert (mended(line, pages)[0]["p4_0002"] == mask(1, 3)).all()


def test_classes_too_rare_and_pixels_ignored(tmp_path):
    lines = said(masks(tmp_path, lambda k: np.where(blob(1) > 0, 2 if k == 3 else 1, mask(0, 255)).astype(np.uint8)))
    assert any(line.startswith("Too rare in the training images to be learnt: thing2 (1 image).") for line in lines)
    assert any("43 % of the pixels of train are ignored, most in p0, p1, p2." in line for line in lines)


def smooth(seed):
    """An image as photos are: large light and dark parts."""
    rng = np.random.default_rng(seed)
    large = Image.fromarray(rng.integers(0, 256, (5, 6, 3), dtype=np.uint8)).resize((48, 40), Image.Resampling.BICUBIC)
    return np.asarray(large).astype(np.int16)


def test_the_same_image_and_near_identical_frames_in_both_parts(tmp_path):
    root = make_folder(tmp_path, 20)
    for k in range(20):
        noise = np.random.default_rng(100 + k).integers(-3, 4, (40, 48, 3))
        frame = 50 if k >= 17 else k  # the validation images are frames of one film
        save(root / "images" / f"p{k}.png", (smooth(frame) + noise).clip(0, 255).astype(np.uint8))
    lines = said(root)
    assert any(line.startswith("3 of 3 validation images look like another one, so few views") for line in lines)
    assert not any("training images" in line and "validation images look" in line for line in lines)
    save(root / "images" / "p18.png", (smooth(4) + 2).clip(0, 255).astype(np.uint8))
    (root / "images" / "p19.png").write_bytes((root / "images" / "p5.png").read_bytes())
    lines = said(root)
    assert any("1 of 3 validation images are training images under another name: p19 = p5." in line for line in lines)
    assert any("1 of 3 validation images look like training images" in line and "p18 = p4" in line for line in lines)


def test_what_looks_alike_against_a_slow_loop():
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 2**63, (30, 2), dtype=np.uint64)
    codes[7], codes[9] = codes[3] ^ np.array([7, 0], np.uint64), 0  # three bits differ; a plain image

    def differing(a, b):
        return sum(bin(int(x) ^ int(y)).count("1") for x, y in zip(a, b, strict=True))

    expected = [
        next((j for j in range(30) if j != i and 9 not in (i, j) and differing(codes[i], codes[j]) <= 8), -1)
        for i in range(30)
    ]
    assert alike(codes, codes, itself=True).tolist() == expected
    assert (expected[3], expected[7]) == (7, 3)


def test_images_of_equal_checksums_are_not_taken_for_the_same(tmp_path):
    """Two images with one CRC-32, empty slices, and the same bytes in another shape: only what is equal is named."""
    root = make_folder(tmp_path, 20)
    flat = np.zeros((40, 48, 3), np.uint8)
    forged = picture(seed=0).reshape(-1)
    forged[-4:] = list(end_for(forged[:-4].tobytes(), zlib.crc32(picture(seed=5).data)))
    assert zlib.crc32(forged.data) == zlib.crc32(picture(seed=5).data)
    save(root / "images" / "p17.png", forged.reshape(40, 48, 3))
    for name in ("p2", "p18"):
        save(root / "images" / f"{name}.png", flat)
    (root / "images" / "p19.png").write_bytes((root / "images" / "p7.png").read_bytes())
    (line,) = (line for line in said(root) if "under another name" in line)
    assert line.startswith("1 of 3 validation images are training images under another name: p19 = p7.")
    square = picture(40, 40)
    assert digest_of(square) != digest_of(square.reshape(20, 80, 3))


def end_for(data, wanted):
    """Four bytes after which the CRC-32 of `data` is that: its steps taken backwards."""
    table = [zlib.crc32(bytes([i])) ^ zlib.crc32(b"\0") for i in range(256)]
    step = {value >> 24: i for i, value in enumerate(table)}
    state, indices = wanted ^ 0xFFFFFFFF, []
    for _ in range(4):
        index = step[state >> 24]
        indices.append(index)
        state = ((state ^ table[index]) << 8) & 0xFFFFFFFF
    state, found = zlib.crc32(data) ^ 0xFFFFFFFF, []
    for index in reversed(indices):
        found.append((state ^ index) & 0xFF)
        state = (state >> 8) ^ table[index]
    return bytes(found)


def test_a_code_is_of_where_an_image_gets_brighter():
    across = np.arange(90, dtype=np.uint8)[None, :, None].repeat(45, 0).repeat(3, 2)
    assert code_of(across) == (2**64 - 1, 0)
    assert code_of(across.swapaxes(0, 1)) == (0, 2**64 - 1)
    assert code_of(across[:, ::-1]) == (0, 0)
    assert code_of(across.astype(np.float32)[..., :1]) == (2**64 - 1, 0)


def test_problems_are_grouped_with_three_names():
    problems = [Problem(f"/d/m{i}.png", "16-bit or wider image", f", values {i}", "do", (i, 10 * i)) for i in range(40)]
    (finding,) = grouped(problems)
    names = "(m0.png, m1.png, m2.png and 37 more)"
    assert str(finding) == f"40 files: 16-bit or wider image {names}, values from 0 to 390. Do."


def test_all_kinds_of_problems_are_found_in_one_pass(tmp_path):
    """Also where image and mask of one pair are both wrong."""
    root = make_folder(tmp_path)
    Image.fromarray(np.full((40, 48), 30000, np.uint16)).save(root / "images" / "p0.png")
    save(root / "masks" / "p0.png", picture())
    kinds = [problem.kind for problem in build(open_dataset(recognise(root)).train, ("a", "b", "c")).problems]
    assert kinds == ["16-bit or wider image", "RGB colour mask"]


def test_what_is_suspicious_is_said_from_the_cache_too(tmp_path):
    root = masks(tmp_path, lambda k: blob(2 + k % 2, outside=1))
    assert said(root) == said(root) != []


def test_two_classes_make_one_task(tmp_path):
    root = make_folder(tmp_path, classes=2)
    heard = []
    progress = Progress()
    progress.notice = heard.append
    check_data(str(root), progress)
    line = one_task("the preset folder's tasks.split = 2-1", ("a", "b"))
    assert line in heard
    assert line.endswith("methods such as fbl do nothing. Set tasks.split = 1-1.")


def test_the_contact_sheet_shows_each_class_under_its_name(tmp_path):
    """A square of class 2 in the left half, and one of class 1 at the right: each is coloured under its own name."""
    make_folder(tmp_path)
    for k in range(10):
        save(tmp_path / "images" / f"p{k}.png", np.full((40, 48, 3), 90 + k, np.uint8))
        drawn = np.zeros((40, 48), np.uint8)
        drawn[10:30, 4:20], drawn[10:30, 28:44], drawn[:4] = 2, 1, 255
        save(tmp_path / "masks" / f"p{k}.png", drawn)
    (tmp_path / "classes.txt").write_text("right\n<left>\nnever\n")
    found = inspect(open_dataset(recognise(tmp_path)))
    sheet.write(found, tmp_path / "sheet.html", Progress())
    page = (tmp_path / "sheet.html").read_text()
    assert "src=http" not in page
    assert "&lt;left&gt; (id 2)" in page
    parts = {part.split("</h2>")[0].split("</i>")[1]: part for part in page.split("<section>")[1:]}
    assert list(parts) == [
        "background (id 0)",
        "right (id 1)",
        "&lt;left&gt; (id 2)",
        "never (id 3)",
        "ignored (id 255)",
    ]
    for title, lit in (("right (id 1)", 1), ("&lt;left&gt; (id 2)", 0), ("background (id 0)", None)):
        pictures = re.findall(r"base64,([^\"]+)", parts[title])
        assert len(pictures) == 4  # two of each part
        tile = np.asarray(Image.open(io.BytesIO(base64.b64decode(pictures[0]))).convert("RGB")).astype(int)
        halves = [np.abs(tile[14:26, a : a + 10] - 90).mean() for a in (7, 31)]
        assert [half > 25 for half in halves] == [lit == 0, lit == 1], (title, halves)
    assert "base64" not in parts["never (id 3)"]
    for name, colour in zip(("background", "right", "&lt;left&gt;"), colours_of(3), strict=True):
        assert f'<i style="background: #{bytes(colour).hex()}"></i>{name}' in page  # as in all other pictures
