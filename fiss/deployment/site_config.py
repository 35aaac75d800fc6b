"""A site's own file, site.toml: what it has and where. The file itself is never sent."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import tomlkit

from fiss.config.section import build
from fiss.data.folder import read_classes
from fiss.errors import UserError, check_fields, check_least, unknown, writing
from fiss.training.device import pick_device


@dataclass(frozen=True)
class SiteSpec:
    """site.toml: what a site has and where."""

    data: str
    """A folder with images/, masks/ and classes.txt (one name per line; the first is mask id 1)."""
    device: str = "auto"
    """auto: the GPU if there is one; or cpu, cuda, cuda:1."""
    batch: int = 0
    """Images per step; 0: as the federation says."""
    workers: int = 0
    """Processes that read images ahead; 0: none, images are read between steps."""
    weights: str = ""
    """A local .safetensors file of the encoder, to compare new images with; empty: as the federation says."""
    key: str = ""
    """A secret that the sites share and the server does not know: class names then travel as keyed hashes."""
    score: float = 0.0
    """Share of its images that are kept from training, to score models on; val.txt in the folder names them instead.
    Only pixels right and wrong by class leave. 0: none."""
    names: Mapping[str, str] = field(default_factory=dict)
    """What the federation calls a class, where the site calls it something else."""


TEMPLATE = """\
# This site: what it has and where. This file is not sent.
data = "DATA"      # a folder with images/, masks/ and classes.txt (one name per line; the first is mask id 1)
device = "auto"    # or cpu, cuda, cuda:1
batch = 0          # images per step; 0: as the federation says
workers = 0        # processes that read images ahead; where there is a GPU, a few keep it busy
key = ""           # a secret that the sites share and the server does not know: class names then travel as hashes
weights = ""       # a local .safetensors file of the encoder, to compare new images with
score = 0.0        # share of the images kept from training, to score models on (val.txt in data names them instead)

[names]            # what the federation calls a class, where this site calls it something else
# "Leber" = "liver"
"""


def read_site(path: Path) -> SiteSpec:
    """A site file, checked."""
    spec = _parsed(path)
    if not spec.data:
        raise UserError(f"{path}: data is missing: the folder with images/, masks/ and classes.txt.")
    for name in spec.names.values():
        if name.strip().lower() in ("", "background"):
            raise UserError(f"{path}: [names] calls a class {name!r}; the background and nothing are no classes.")
    check_fields(f"{path}: ", spec, "2 or more, or 0", lambda batch: batch == 0 or batch > 1, "batch")
    check_least(f"{path}: ", spec, 0, "workers")
    check_fields(f"{path}: ", spec, "at least 0 and below 1", lambda share: 0 <= share < 1, "score")
    root = Path(spec.data).expanduser()
    root = root if root.is_absolute() else path.parent / root
    for needed in ("images", "masks", "classes.txt"):
        if not (root / needed).exists():
            raise UserError(f"{path}: data = {spec.data}: {root / needed} is not there.")
    own = read_classes(root / "classes.txt")
    for name in spec.names:
        if name not in own:
            raise unknown(f"class under [names] of {path.name}, where classes.txt is meant,", name, own)
    return replace(spec, data=str(root))


def _parsed(path: Path) -> SiteSpec:
    """The site file with every key checked, nothing looked at."""
    try:
        return build(SiteSpec(""), tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise UserError(f"{path}: the site file is not there ({error}).") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, UserError) as error:
        raise UserError(f"{path}: {error}.") from error


def write_site(
    kit: Path, data: Path, device: str | None = None, batch: int | None = None, workers: int | None = None
) -> SiteSpec:
    """A kit's site file, checked; what is not given stays as it was."""
    path = kit / "site.toml"
    if not path.is_file():
        raise UserError(f"{kit}: not a site's start-up kit (it has no site.toml).")
    root = data.expanduser().absolute()
    for needed in ("images", "masks", "classes.txt"):
        if not (root / needed).exists():
            raise UserError(f"--data {data}: {root / needed} is not there.")
    _parsed(path)
    pick_device(device or "auto")
    given = {"data": str(root), "device": device, "batch": batch, "workers": workers}
    document = tomlkit.parse(path.read_text(encoding="utf-8"))  # keeps comments, and what else was written
    document.update({key: value for key, value in given.items() if value is not None})
    part = path.with_name("site.toml.part")
    with writing(path):
        part.write_text(tomlkit.dumps(document), encoding="utf-8")
    spec = read_site(part)
    part.replace(path)
    return spec
