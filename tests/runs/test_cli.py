"""The command line as a person meets it."""

import json
import re
import subprocess
import sys
from dataclasses import fields, replace
from typing import get_type_hints

import pytest
from command_line import fiss
from typer.testing import CliRunner
from worlds import make_folder

from fiss.cli import app
from fiss.cli.names import complete_methods, complete_presets
from fiss.config.config import to_toml
from fiss.config.listing import list_methods, list_presets, method_fields
from fiss.config.presets import PRESETS
from fiss.config.section import in_words, meanings
from fiss.methods import METHODS
from fiss.monitors.rules import RULES


def test_help_imports_nothing_heavy():
    """`fiss --help` answers at once: torch, numpy and the rest are imported only by the commands that need them."""
    heavy = ["matplotlib", "torch", "torchvision", "numpy", "PIL", "safetensors", "segmentation_models_pytorch", "timm"]
    for arguments in ([], ["--help"], ["run", "-h"], ["methods"], ["methods", "fbl"], ["presets"], ["monitors"]):
        code = (
            f"import sys; sys.argv = ['fiss', *{arguments!r}]\n"
            "from fiss.cli import main\n"
            "try: main()\nexcept SystemExit: pass\n"
            f"print('LOADED', [m for m in {heavy!r} if m in sys.modules])"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert "LOADED []" in done.stdout


def test_run_resume_eval(tiny, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.toml").write_text(to_toml(replace(tiny, world=replace(tiny.world, rounds=1))))
    fiss("run", "tiny.toml", "--seed", 3, "--set", "training.epochs=1", "--method", "finetune")
    out = capsys.readouterr().out
    assert "task 1" in out
    assert "forgetting" in out
    path = tmp_path / "runs" / "tiny-finetune-seed3"
    for name in ("config.toml", "scores.jsonl", "rounds.jsonl", "splits.json", "state.json", "weights", "report.html"):
        assert (path / name).exists()
    assert f"runs/{path.name}/report.html" in out
    assert f"fiss predict runs/{path.name} IMAGE..." in out
    assert f"fiss run runs/{path.name}/config.toml --method NAME" in out
    assert "first classes" in out
    fiss("run", "tiny.toml", "--seed", 3, "--base", path)
    assert (tmp_path / "runs" / "tiny-finetune-seed3-2" / "state.json").exists()
    fiss("run", "tiny.toml", "--joint")
    assert (tmp_path / "runs" / "tiny-joint-seed5" / "state.json").exists()
    capsys.readouterr()
    fiss("resume", path)
    assert "is finished already" in " ".join(capsys.readouterr().out.split())
    capsys.readouterr()
    fiss("eval", path, "--view", "full", "--json")
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["task"] for line in lines] == [0, 1]
    fiss("eval", path)
    assert "published" in capsys.readouterr().out
    monkeypatch.setattr("fiss.reports.report.write", lambda runs, out, progress: out.write_text("a page"))
    for replaced in (False, True):
        fiss("report", path)
        assert ("in place of the page that was there" in capsys.readouterr().out) == replaced


def test_an_external_method(tiny, tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(
        "from dataclasses import dataclass\nfrom typing import ClassVar\n"
        "from fiss.methods.finetune import Finetune\n\n"
        '@dataclass(frozen=True)\nclass Mine(Finetune):\n    """Mine."""\n    name: ClassVar[str] = "mine"\n'
        "    weight: float = 2.0\n"
        '    """How much."""\n\n'
        "    def losses(self, step):\n        return {k: self.weight * v for k, v in super().losses(step).items()}\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])  # as the installed script has it
    (tmp_path / "tiny.toml").write_text(to_toml(replace(tiny, world=replace(tiny.world, rounds=1))))
    fiss("run", "tiny.toml", "--method", "mine:Mine", "--set", "method.weight=3.0", "--out", "r")
    text = (tmp_path / "r" / "config.toml").read_text()
    assert 'name = "mine:Mine"' in text
    assert "# How much.\nweight = 3.0" in text
    fiss("resume", "r")


def test_presets_and_methods(capsys):
    fiss("presets")
    assert "voc-15-1" in capsys.readouterr().out
    fiss("presets", "voc-8-2")
    assert 'split = "8-2"' in capsys.readouterr().out
    fiss("methods")
    out = capsys.readouterr().out
    assert "finetune" in out
    assert "Which one?" in out
    fiss("methods", "analytic")
    out = capsys.readouterr().out
    assert "one of trained," in out
    assert "Literal" not in out
    fiss("monitors")
    out = capsys.readouterr().out
    assert all(name in out for name in RULES)


def test_the_lists_name_everything_without_importing_it():
    assert list(list_methods()) == list(METHODS)
    for name, make in METHODS.items():  # read from the sources: the same as of what is imported
        method, (found, parts) = make(), method_fields(name)
        texts, hints = meanings(type(method)), get_type_hints(type(method))
        assert [(key, *own) for key, own in found.items()] == [
            (f.name, in_words(hints[f.name]), getattr(method, f.name), texts.get(f.name, "")) for f in fields(method)
        ]
        assert parts == tuple(method.ablations)
    assert list(list_presets()) == list(PRESETS)
    assert all({**list_methods(), **list_presets()}.values())


def test_completion():
    assert [name for name, _ in complete_presets("voc-4")] == ["voc-4-4", "voc-4-4-small"]
    assert [name for name, _ in complete_methods("fi")] == ["finetune"]


def test_data_check(tmp_path, capsys):
    root = make_folder(tmp_path)
    fiss("data", "check", root)
    out = capsys.readouterr().out
    assert re.search(r"thing1\W+3\W+21\.43\W+33\.3", out)
    assert "no problems" in out
    (root / "val.txt").write_text("p7\np8\n")
    fiss("data", "check", root)
    assert "in no validation image, so will not be scored: thing1." in capsys.readouterr().out
    (root / "masks" / "p1.png").unlink()
    (root / "masks" / "p8.png").write_bytes(b"x")
    fiss("data", "check", root, code=2)
    captured = capsys.readouterr()
    assert "p1.png: missing mask" in captured.out
    assert "p8.png: unreadable or truncated mask" in captured.out
    assert "2 problem(s)" in captured.err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["run", "voc-4-5"], "Unknown preset 'voc-4-5'. Did you mean 'voc-4-4'?"),
        (["run", "shapes", "--method", "finetun"], "Unknown method 'finetun'. Did you mean 'finetune'?"),
        (["run", "shapes", "--set", "trainin.batch=3"], "Did you mean 'training.batch'?"),
        (["run", "shapes", "--set", "model.encoder=resnet17"], "Unknown encoder 'resnet17'"),
        (["run", "shapes", "--set", "data.name=coco"], "Unknown data set 'coco'"),
        (["run", "shapes", "--set", "data.shapes_seed=-1"], "data.shapes_seed = -1"),
        (["run", "shapes", "--set", "training.device=mps"], "use auto, cpu, cuda"),
        (["run", "shapes", "--set", "model.options.decoder_channels=-5"], "cannot be built"),
        (["run", "shapes", "--set", "model.weights=/absent.safetensors"], "no such file"),
        (["run", "shapes", "--method", "fiss.methods.base:Method"], "not complete"),
        (["run", "shapes", "--ablate", "pod"], "no parts to take out"),
        (["run", "shapes", "--set", "tasks.split=7-2"], "does not fit 12 classes"),
        (["run", "shapes", "--set", "world.per_round=9"], "more than the 4 clients"),
        (["run", "voc-4-4", "--set", "data.root=/absent"], "there is no such folder"),
        (["run", "voc-4-4"], "data.root is empty"),
        (["run", "absent.toml"], "unreadable"),
        (["resume", "/absent"], "/absent: there is no such folder"),
        (["eval", "/absent"], "/absent: there is no such folder"),
        (["picture", "/absent", "--out", "x.txt"], "no picture ends so"),
        (["eval", "/absent", "--view", "ful"], "Did you mean 'full'?"),
        (["data", "check", "/absent"], "no such folder"),
        (["presets", "voc"], "Unknown preset"),
        (["check", "/tmp"], "Unknown command 'check'. Did you mean 'data check'?"),
        (["data", "chek"], "Did you mean 'data check'?"),
        (["data", "."], "`fiss start .` proposes"),
        (["predict", "/absent", "a.jpg"], "/absent: there is no such folder"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(arguments, says, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fiss(*arguments, code=2)
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert says in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_says_how_to_go_on(tiny, tmp_path, monkeypatch, capsys):
    from fiss.simulation import experiment

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(experiment, "resume", interrupted)
    monkeypatch.chdir(tmp_path)
    fiss("resume", "somewhere", code=130)
    assert "Nothing was written yet" in capsys.readouterr().err
    (tmp_path / "somewhere").mkdir()
    fiss("resume", "somewhere", code=130)
    assert "`fiss resume somewhere` goes on" in capsys.readouterr().err


def test_bars_on_a_terminal(tiny, tmp_path):
    from rich.console import Console

    from fiss.reports.display import Display
    from fiss.simulation import experiment

    console = Console(force_terminal=True, width=120, record=True)
    with Display(console) as display:
        experiment.start(replace(tiny, world=replace(tiny.world, rounds=1)), tmp_path / "r", display)
    text = console.export_text()
    assert re.search(r"task 1  round 2/2 .*client \d  loss \d\.\d+  \d+ img/s  0:00 left", text)


def test_a_client_that_does_not_train_repeats_no_loss():
    from rich.console import Console

    from fiss.reports.display import Display

    console = Console(width=120, record=True, force_terminal=False)
    with Display(console) as display:
        for client, losses in ((1, {"ce": 0.5}), (2, None)):  # the second adds up features alone
            display.client(client, 1)
            display.step(4, losses)
    first, second = console.export_text().splitlines()
    assert "client 1  loss 0.500" in first
    assert "client 2" in second
    assert "loss" not in second


def test_lines_elsewhere(tiny, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.toml").write_text(to_toml(replace(tiny, world=replace(tiny.world, rounds=1))))
    fiss("run", "tiny.toml", "--out", "a[b]c")
    out = capsys.readouterr().out
    assert re.search(r"task 0  round 1/2  client \d  loss \d\.\d+  \d+ img/s  \d+:\d\d left", out)
    assert "fiss run 'a[b]c'/config.toml" in out  # names are not markup, and commands can be given as they are
    (tmp_path / "a[b]c" / "scores.jsonl").write_text("{")
    fiss("resume", "a[b]c", code=2)
    assert "error: " in capsys.readouterr().err


def test_a_full_disk_is_one_line(tiny, tmp_path, capsys, monkeypatch):
    from fiss.simulation import experiment

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(experiment, "resume", full)
    fiss("resume", tmp_path, code=2)
    assert capsys.readouterr().err == "error: [Errno 28] No space left on device\n"


def test_the_app_knows_its_commands():
    result = CliRunner().invoke(app, ["--help"])
    for command in ("run", "resume", "eval", "sweep", "table", "compare", "presets", "methods", "data"):
        assert command in result.output


def test_compare(tiny, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fiss.reports.report.write", lambda *_: None)  # six pages that nobody looks at
    (tmp_path / "tiny.toml").write_text(to_toml(replace(tiny, world=replace(tiny.world, rounds=1))))
    for seed in (1, 2):
        how = f"training.graphs={'true' if seed == 1 else 'false'}"  # rounding at most: still one row
        fiss("run", "tiny.toml", "--seed", seed, "--out", f"r{seed}", "--set", how)
    fiss("run", "tiny.toml", "--method", "fbl", "--ablate", "pod", "--base", "r1", "--seed", 1, "--out", "f")
    fiss("run", "tiny.toml", "--joint", "--out", "j")
    capsys.readouterr()
    fiss("compare", "r1", "r2", "f", "j", "--markdown")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "| method | runs | task 0 | task 1 | old | new | forgetting |"
    ends = [
        [
            json.loads(line)["miou"]
            for line in (tmp_path / r / "scores.jsonl").read_text().splitlines()
            if "published" in line
        ]
        for r in ("r1", "r2")
    ]
    first = [e[0] for e in ends]
    mean, deviation = sum(first) / 2, abs(first[0] - first[1]) / 2**0.5
    assert lines[2].startswith(f"| finetune | 2 | {mean:.1f} ± {deviation:.1f} |")
    assert lines[3].startswith("| fbl-without-pod | 1 |")
    assert lines[4].startswith("| joint | 1 | - | ")
    fiss("compare", "r1", "j")
    assert re.search(r"tiny: mIoU\s+after each task", capsys.readouterr().out)
    fiss("compare", "r1", "--view", "none", code=2)
    assert "r1 was scored in view full, published only" in capsys.readouterr().err
    fiss("compare", "r1", "r1", code=2)
    assert "another run with the same config has seed 1 too" in capsys.readouterr().err
    fiss("run", "tiny.toml", "--seed", 1, "--set", "training.later_rate=0.5", "--out", "other")
    state = json.loads((tmp_path / "other" / "state.json").read_text())
    (tmp_path / "other" / "state.json").write_text(json.dumps(state | {"finished": False}))
    capsys.readouterr()
    fiss("compare", "r1", "other", "--markdown")
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].startswith("| finetune, training.later_rate 0.01 | 1 |")
    assert lines[3].startswith("| finetune, training.later_rate 0.5 | 1 |")
    assert lines[3].endswith("| - | - | - |")  # not finished: no last task to speak of
    assert "other is not finished; its last task is 1." in lines[-1]
    fiss("compare", "r1", "other")
    assert "note: other is not finished" in capsys.readouterr().out


@pytest.mark.slow
def test_demo(tiny, tmp_path, monkeypatch, capsys):
    """What `make demo` does, on a smaller world: three methods, a table, a picture."""
    from PIL import Image

    monkeypatch.chdir(tmp_path)
    words = [
        "data.shapes_train=40",
        "data.shapes_val=8",
        "data.shapes_size=48",
        "augment.crop=48",
        "evaluation.size=48",
    ]
    words += ["world.rounds=1", "training.epochs=1", "training.threads=1"]
    fiss("demo", *(w for word in words for w in ("--set", word)))
    out = capsys.readouterr().out
    assert re.search(r"finetune\W+1\W", out)
    assert re.search(r"fbl\W+1\W", out)
    assert re.search(r"analytic\W+1\W", out)
    assert not re.search(r"-\d+:\d\d", out)  # time that is left
    assert re.search(r"^- fbl also learns .*\. fbl ends at \d+\.\d mIoU and forgot ", out, re.M)
    assert re.search(r"^\w.* (ends best|are level), with \d+\.\d mIoU[;,] .*\.$", out, re.M)
    path = tmp_path / "runs" / "demo"
    with Image.open(path / "demo.png") as drawn:
        assert drawn.width > 600
        assert len(drawn.convert("RGB").resize((64, 64)).getcolors(5000)) > 100
    one, two = (json.loads((path / m / "scores.jsonl").read_text().splitlines()[0]) for m in ("finetune", "fbl"))
    assert one == two  # one first task for both
    fiss("picture", path / "fbl", "--out", tmp_path / "x.svg")
    assert (tmp_path / "x.svg").read_text().startswith("<?xml")


def test_pictures_need_one_data_set_and_a_model(tiny, tmp_path, capsys):
    from fiss.runs.folder import RunFolder

    for name, seed in (("a", 0), ("b", 1)):
        RunFolder.create(tmp_path / name, replace(tiny, data=replace(tiny.data, shapes_seed=seed)))
    fiss("picture", tmp_path / "a", tmp_path / "b", code=2)
    assert "different images" in capsys.readouterr().err
    fiss("picture", tmp_path / "a", code=2)
    assert "no task is finished" in capsys.readouterr().err
