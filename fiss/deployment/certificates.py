"""Certificates: how long they last, new ones for the same keys, and private keys that do not stay on the server.

FLARE's certificates last 360 days, the federation's own included. A new one has the same names and the same key, so
nothing that is secret has to travel: it goes to the sites with the next job. Both verify each other's before and after,
because the key that signs them stays the same.
"""

import base64
import io
import json
import shutil
import tarfile
from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta
from hashlib import scrypt
from pathlib import Path
from secrets import token_bytes, token_urlsafe
from typing import Any

from fiss.deployment import provisioning
from fiss.errors import UserError
from fiss.runs.folder import write_atomically

DAYS = 360
"""FLARE accepts a certificate of the federation's own that lasts so long, and no other."""
WARN_DAYS = 30
STATE = Path("provision") / "fiss" / "state" / "cert.json"
"""FLARE's: by name certificates and private keys, and those of the federation itself."""
ROOT, ROOT_KEY = "root_cert", "root_pri_key"
RENEWED = "renewed.json"
"""In the federation's folder: certificates that the next jobs take to the sites."""
FILES = ("client.crt", "rootCA.pem")
MAGIC = b"fiss-kit-1\n"


def valid_until(folder: Path) -> dict[str, datetime]:
    """Until when each certificate is valid, by name; `federation` is its own, which signs the others."""
    return {name: _end(text) for name, text in _certificates(_state(folder)).items()}


def expiring(folder: Path, now: datetime | None = None) -> list[str]:
    """What to say of certificates that end within a month."""
    try:
        return warnings(folder, valid_until(folder), provisioning.disabled_sites(folder), now)
    except UserError:  # provision/ may be kept elsewhere
        return []


def warnings(
    folder: Path, ends: Mapping[str, datetime], gone: Collection[str], now: datetime | None = None
) -> list[str]:
    """The same, of certificates that end then; those of sites that have `gone` do not matter."""
    now = now or datetime.now(UTC)
    soon = [f"{n} {end:%Y-%m-%d}" for n, end in ends.items() if end - now < timedelta(WARN_DAYS) and n not in gone]
    return [f"certificates end: {', '.join(soon)}. `fiss federation renew {folder}` makes new ones"] if soon else []


def kit_until(kit: Path) -> datetime | None:
    """Until when a kit's own certificates are valid; None where it has none that can be read."""
    try:
        return min(_end((kit / "startup" / name).read_text()) for name in FILES)
    except (OSError, ValueError):
        return None


def kit_warnings(kit: Path, now: datetime | None = None) -> list[str]:
    """What to say at a site of its certificate: that it ends within a month, or that a new one waits for a start."""
    now, until = now or datetime.now(UTC), kit_until(kit)
    again = f"start this site again (touch {kit / 'shutdown.fl'}; bash {kit / 'startup' / 'start.sh'})"
    ask = "ask the server's people for `fiss federation renew FOLDER`"
    if until is None:
        return []
    if until <= now:  # the server lets it in no more, so nothing comes with a job
        how = f"{ask} and for FOLDER/{RENEWED}; then `fiss federation renew {kit} --with {RENEWED}`, and {again}"
        return [f"the certificate ended on {until:%Y-%m-%d}: {how}"]
    if until - now < timedelta(WARN_DAYS):
        return [f"the certificate ends on {until:%Y-%m-%d}: {ask}. The new one comes with the next job; then {again}"]
    if _waits_for_start(kit):
        return [f"a new certificate, valid until {until:%Y-%m-%d}, is not in use yet: {again}"]
    return []


def renew(folder: Path) -> datetime:
    """New certificates for everybody; gives until when they are valid. The sites get theirs with the next jobs."""
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    state = _state(folder)
    key = load_pem_private_key(state[ROOT_KEY].encode(), None)
    now = datetime.now(UTC).replace(microsecond=0)
    new = {name: _again(text, key, now) for name, text in _certificates(state).items()}
    state[ROOT] = new["federation"]
    for name in new.keys() - {"federation"}:
        state[name]["cert"] = new[name]
    write_atomically(folder / STATE, json.dumps(state).encode())
    (folder / STATE).chmod(0o600)
    project = provisioning.read_project(folder)
    for name in new.keys() - {"federation"}:
        startup = folder / "kits" / name / "startup"
        if startup.is_dir():
            own = "server.crt" if name == project.server else "client.crt"
            write_atomically(startup / own, new[name].encode())
            write_atomically(startup / "rootCA.pem", new["federation"].encode())
    sites = {name: {"client.crt": new[name], "rootCA.pem": new["federation"]} for name in project.sites if name in new}
    write_atomically(folder / RENEWED, json.dumps(sites).encode())
    return now + timedelta(DAYS)


def renewed(folder: Path) -> dict[str, dict[str, str]]:
    """Files of new certificates by site, for the next job to take there."""
    path = folder / RENEWED
    return dict(json.loads(path.read_bytes())) if path.is_file() else {}


def install(kit: Path, files: Mapping[str, Mapping[str, str]]) -> datetime | None:
    """At a site: put its new certificate in place of the old one, if it is for the same key and signed by the same
    federation; gives until when it is valid, None where there is nothing newer. It is used from the next start on."""
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    if not files:
        return None
    startup = kit / "startup"
    own, root = (x509.load_pem_x509_certificate((startup / name).read_bytes()) for name in FILES)
    new = files.get(str(own.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value))
    if new is None:
        return None
    new_own, new_root = (x509.load_pem_x509_certificate(new[name].encode()) for name in FILES)
    if new_own.public_key() != own.public_key() or new_root.public_key() != root.public_key():
        raise UserError(f"{startup}: a new certificate for another key, or of another federation, is not used.")
    new_own.verify_directly_issued_by(new_root)
    if new_own.not_valid_after_utc <= own.not_valid_after_utc:
        return None
    for name in FILES:
        write_atomically(startup / name, new[name].encode())
    return new_own.not_valid_after_utc


def _waits_for_start(kit: Path) -> bool:
    """Whether the kit's process began before its certificate was put there."""
    process, certificate = kit / "pid.fl", kit / "startup" / FILES[0]
    return process.is_file() and certificate.stat().st_mtime > process.stat().st_mtime


def take(kit: Path, path: Path) -> datetime:
    """At a site that is let in no more: its new certificate, from a copy of the server's file."""
    try:
        until = install(kit, json.loads(path.read_bytes()))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: not {RENEWED} of a federation's folder, or {kit} is no kit ({error}).") from error
    if until is None:
        raise UserError(f"{path}: nothing in it is newer than what {kit} has, or it is not for this site.")
    return until


def seal(folder: Path, delete: bool) -> dict[str, str]:
    """Let no private key of a site stay on the server: each site's kit becomes an encrypted archive, KIT.sealed, or is
    deleted. Gives the passwords, by archive; nobody else knows them."""
    project, passwords = provisioning.read_project(folder), dict[str, str]()
    state = _state(folder)
    for name in project.sites:
        kit = folder / "kits" / name
        if any((kit / mark).is_file() for mark in ("pid.fl", "daemon_pid.fl")):
            raise UserError(f"{kit} is in use on this machine: stop the site, and move its kit to a place of its own.")
    for name in project.sites:
        kit = folder / "kits" / name
        if kit.is_dir():
            if not delete:
                password = token_urlsafe(12)
                archive = kit.with_name(f"{name}.sealed")
                write_atomically(archive, _encrypted(_packed(kit), password))
                passwords[str(archive)] = password
            shutil.rmtree(kit)
        state.get(name, {}).pop("pri_key", None)
    write_atomically(folder / STATE, json.dumps(state).encode())
    (folder / STATE).chmod(0o600)
    for made in (folder / "provision" / "fiss").glob("prod_*"):
        shutil.rmtree(made)
    return passwords


def unseal(archive: Path, password: str, place: Path) -> Path:
    """The kit in an encrypted archive, put into that folder."""
    from cryptography.fernet import Fernet, InvalidToken

    data = archive.read_bytes()
    if not data.startswith(MAGIC):
        raise UserError(f"{archive}: not a kit that `fiss federation seal` encrypted.")
    salt, token = data[len(MAGIC) :][:16], data[len(MAGIC) + 16 :]
    try:
        packed = Fernet(_key(password, salt)).decrypt(token)
    except InvalidToken as error:
        raise UserError(f"{archive}: the password is wrong, or the file is damaged.") from error
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        kit = place / tar.getnames()[0].split("/")[0]
        if kit.exists():
            raise UserError(f"{kit} is there already.")
        tar.extractall(place, filter="data")
    kit.chmod(0o700)
    return kit


def _packed(kit: Path) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        tar.add(kit, kit.name)
    return packed.getvalue()


def _encrypted(data: bytes, password: str) -> bytes:
    from cryptography.fernet import Fernet

    salt = token_bytes(16)
    return MAGIC + salt + Fernet(_key(password, salt)).encrypt(data)


def _key(password: str, salt: bytes) -> bytes:
    return base64.urlsafe_b64encode(scrypt(password.encode(), salt=salt, n=2**14, r=8, p=1, dklen=32))


def _state(folder: Path) -> dict[str, Any]:
    try:
        return dict(json.loads((folder / STATE).read_bytes()))
    except (OSError, ValueError) as error:
        raise UserError(f"{folder / STATE}: missing or damaged ({error}); restore it from a copy.") from error


def _certificates(state: Mapping[str, Any]) -> dict[str, str]:
    """Certificates by name, the federation's own first."""
    return {"federation": state[ROOT]} | {n: part["cert"] for n, part in state.items() if isinstance(part, dict)}


def _end(text: str) -> datetime:
    from cryptography import x509

    return x509.load_pem_x509_certificate(text.encode()).not_valid_after_utc


def _again(text: str, key: Any, now: datetime) -> str:
    """The same certificate, valid from now on."""
    from cryptography import x509
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.serialization import Encoding

    old = x509.load_pem_x509_certificate(text.encode())
    builder = x509.CertificateBuilder(old.issuer, old.subject, old.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now).not_valid_after(now + timedelta(DAYS))
    for extension in old.extensions:
        builder = builder.add_extension(extension.value, extension.critical)
    return builder.sign(key, SHA256()).public_bytes(Encoding.PEM).decode()
