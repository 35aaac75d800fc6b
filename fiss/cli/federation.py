"""The commands of a real federation: `fiss federation ...`."""

import os
import signal
from pathlib import Path
from typing import Annotated

import typer

from fiss.cli.names import Commands

app = typer.Typer(cls=Commands, help="A real federation, over the network, on NVIDIA FLARE.", no_args_is_help=True)

Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="The federation's folder, on the server's machine.")]


@app.command()
def init(
    folder: Folder,
    site: Annotated[list[str], typer.Option(help="Name of a site; repeatable.")],
    server: Annotated[str, typer.Option(help="The server's name, as the sites reach it.")] = "localhost",
    port: Annotated[int, typer.Option(min=1, max=65534, help="Its port; the next one is the administrator's.")] = 8002,
    what: Annotated[
        str, typer.Option("--preset", metavar="PRESET|FILE.toml", help="Network and training (see `fiss presets`).")
    ] = "folder",
    method: Annotated[
        str, typer.Option(help="How not to forget (see `fiss methods`); else the file's or preset's, or fbl.")
    ] = "",
    setting: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change one key; repeatable.")
    ] = None,
) -> None:
    """Make a federation: its config, and a start-up kit for the server, each site and the administrator."""
    from fiss.config.presets import choose, label
    from fiss.deployment import provisioning

    if not method and not what.endswith(".toml") and label(choose(what)) == "finetune":  # such a preset names none
        method = "fbl"
    usual = ["monitor.name=features", "monitor.probed=all", "federation.largest=10", "federation.patience=3600"]
    config = choose(what, method, (), [*usual, *(setting or [])])
    for kit in provisioning.init(folder, config, server, site, port):
        print(f"kit  {kit}")
    print(provisioning.chosen(config))
    print(f"The config of all is {folder / 'federation.toml'}. Give each site its kit, and nobody else's.")
    print(
        f"Sites' private keys are in these kits: `fiss federation seal {folder}` encrypts or deletes the copies here."
    )


@app.command()
def add(folder: Folder, site: Annotated[str, typer.Argument(help="Name of the new site.")]) -> None:
    """Make a kit for one more site; it takes part from the next job on."""
    from fiss.deployment import provisioning

    print(f"kit  {provisioning.add(folder, site)}")


SiteName = Annotated[str, typer.Argument(metavar="SITE", help="Name of the site.")]
TakeOut = Annotated[
    bool, typer.Option("--take-out", help="Take what it contributed out of the sums (method analytic only).")
]


@app.command("stop-site")
def stop_site(folder: Folder, site: SiteName) -> None:
    """Shut one site down after the present round; it takes part again when it is started again."""
    from fiss.deployment import operations
    from fiss.reports.display import shown

    with shown(True) as display:
        operations.stop_site(folder, site, display)
    print(f"{site} is stopped. `start.sh` in its kit starts it again.")


@app.command()
def leave(folder: Folder, site: SiteName, take_out: TakeOut = False) -> None:
    """A site leaves for good, after the present round: it is shut down, and its kit is refused from then on."""
    from fiss.deployment import operations
    from fiss.reports.display import shown

    with shown(True) as display:
        gone = operations.leave(folder, site, take_out, display)
    how = "has left" if gone else "is refused from now on"
    print(f"{site} {how}" + (", and the sums are without it." if take_out else "; its part in the model stays."))


@app.command()
def remove(folder: Folder, site: SiteName, take_out: TakeOut = False) -> None:
    """Revoke a site's kit: it is refused at once, and from then on."""
    from fiss.deployment import operations
    from fiss.reports.display import shown

    with shown(True) as display:
        operations.remove(folder, site, take_out, display)
    print(f"{site} is refused from now on" + (", and the sums are without it." if take_out else "."))


@app.command()
def renew(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER|KIT", help="The federation's folder; with --with a site's kit.")
    ],
    with_: Annotated[
        Path | None,
        typer.Option(
            "--with", metavar="renewed.json", help="At a site whose certificate has ended: the server's file."
        ),
    ] = None,
) -> None:
    """New certificates for server, sites and administrator, for the keys that they have."""
    from fiss.deployment import certificates, supervisor

    if with_ is not None:
        print(f"A new certificate, valid until {certificates.take(folder, with_):%Y-%m-%d}. Start the site again.")
        return
    until = certificates.renew(folder)
    supervisor.renew_job(folder)
    print(f"New certificates, valid until {until:%Y-%m-%d}. Sites get theirs with the next job; no round is lost.")
    print("Each is used from the next start on: start the server and every site again within the month.")


@app.command()
def seal(
    folder: Folder,
    delete: Annotated[bool, typer.Option("--delete", help="Only delete the copies; the sites have theirs.")] = False,
) -> None:
    """Keep no private key of a site on the server: encrypt the sites' kits for their way, or delete them."""
    from fiss.deployment import certificates

    for archive, password in certificates.seal(folder, delete).items():
        print(f"{archive}  password {password}")
    print("No private key of a site is here any more." + ("" if delete else " The passwords are shown this once."))


@app.command()
def unseal(
    archive: Annotated[Path, typer.Argument(metavar="ARCHIVE", help="NAME.sealed, as the server's people gave it.")],
    out: Annotated[Path, typer.Option(help="The folder that the kit is put into.")] = Path(),
    password: Annotated[str, typer.Option(help="Asked for if not given.")] = "",
) -> None:
    """At a site: the start-up kit in an encrypted archive."""
    from fiss.deployment import certificates

    kit = certificates.unseal(archive, password or typer.prompt("Password", hide_input=True), out)
    print(f"kit  {kit}: fiss federation site {kit} --data FOLDER is next.")


@app.command("set")
def set_(
    folder: Folder,
    settings: Annotated[list[str], typer.Argument(metavar="KEY=VALUE...", help="Keys of federation.toml.")],
) -> None:
    """Change what may change while a federation lives; it takes effect with the next job."""
    from fiss.config.config import parse_settings
    from fiss.deployment import provisioning, supervisor

    provisioning.change_config(folder, parse_settings(settings))
    running = supervisor.renew_job(folder)
    print(f"{folder / 'federation.toml'} is changed; it holds from the next {'round' if running else '`run`'} on.")


@app.command()
def upgrade(
    kits: Annotated[list[Path], typer.Argument(metavar="KIT...", help="Start-up kits, or a federation's folder.")],
) -> None:
    """Make kits of an earlier fiss fit this one; what is in them stays as it is."""
    from fiss.deployment import provisioning

    for path in kits:
        for kit, changed in provisioning.upgrade(path).items():
            print(f"{kit}: {'fits now; start it again if it runs' if changed else 'fits already'}")


@app.command("site")
def site_(
    kit: Annotated[Path, typer.Argument(metavar="KIT", help="The site's start-up kit.")],
    data: Annotated[Path, typer.Option(help="A folder with images/, masks/ and classes.txt.")],
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda, cuda:1.")] = None,
    batch: Annotated[int | None, typer.Option(min=0, help="Images per step; 0: as the federation says.")] = None,
    workers: Annotated[
        int | None, typer.Option(min=0, help="Processes that read images ahead; a few for a GPU.")
    ] = None,
) -> None:
    """At a site: write its site.toml, and show what the federation would see of its folder. Options that are not given
    stay as site.toml has them."""
    from fiss.deployment.provisioning import refuse_old_kits
    from fiss.deployment.service import write_unit
    from fiss.deployment.site_config import write_site
    from fiss.deployment.site_folder import describe
    from fiss.reports.display import shown

    refuse_old_kits(kit)
    with shown(True) as display:
        spec = write_site(kit, data, device, batch, workers)
        write_unit(kit)
        for line in describe(spec, display):
            display.notice(line)


@app.command("run")
def run_(
    folder: Folder,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds in all, those of earlier commands counted.")],
    sites: Annotated[int, typer.Option(min=1, help="Sites that must be there to begin.")] = 1,
    track: Annotated[str, typer.Option(help="Losses and scores also to tensorboard, mlflow or wandb.")] = "",
) -> None:
    """Train, and go on through whatever happens to server and sites; give it again to go on."""
    from fiss.deployment.supervisor import supervise
    from fiss.reports.display import shown

    for number in (signal.SIGTERM, signal.SIGHUP):  # end the job too
        signal.signal(number, signal.default_int_handler)
    with shown(True) as display:
        try:
            run = supervise(folder, rounds, sites, display, track=track)
        except KeyboardInterrupt:
            again = f"fiss federation run {folder} --rounds {rounds} --sites {sites}"
            print(f"\nStopped. `{again}` goes on from the last finished round.", flush=True)
            os._exit(130)  # threads of FLARE's that wait for a server would keep the process
    print(f"The model is in {run.path}: fiss predict {run.path} IMAGE...")


@app.command()
def status(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER|KIT", help="The federation's folder at the server; its kit at a site.")
    ],
    json: Annotated[bool, typer.Option("--json", help="One JSON object instead of a table.")] = False,
) -> None:
    """How a federation stands, at the server or at a site: what it does, rounds, classes, sites, warnings, its log."""
    from json import dumps

    from fiss.cli.reports import show
    from fiss.cli.tables import federation_table, site_table
    from fiss.deployment.status import server_values, site_values
    from fiss.deployment.supervisor import survey

    if (folder / "project.yml").is_file():
        found = survey(folder)
        print(dumps(server_values(found))) if json else show(federation_table(found, server_values(found)))
    else:
        values = site_values(folder)
        print(dumps(values)) if json else show(site_table(values))


@app.command()
def stop(folder: Folder) -> None:
    """End the training after the present round; `run` goes on with it."""
    from fiss.deployment import supervisor

    supervisor.stop(folder)
    print("It ends after the present round.")
