"""The commands of a real federation: `fiss federation ...`."""

import os
import signal
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="A real federation, over the network, on NVIDIA FLARE.", no_args_is_help=True)

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
    method: Annotated[str, typer.Option(help="How not to forget (see `fiss methods`).")] = "fbl",
    setting: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change one key; repeatable.")
    ] = None,
) -> None:
    """Make a federation: its config, and a start-up kit for the server, each site and the administrator."""
    from fiss.config.presets import choose
    from fiss.deployment import provisioning

    usual = ["monitor.name=features", "monitor.probed=all", "federation.largest=10", "federation.patience=3600"]
    config = choose(what, method, (), [*usual, *(setting or [])])
    for kit in provisioning.init(folder, config, server, site, port):
        print(f"kit  {kit}")
    print(f"The config of all is {folder / 'federation.toml'}. Give each site its kit, and nobody else's.")


@app.command()
def add(folder: Folder, site: Annotated[str, typer.Argument(help="Name of the new site.")]) -> None:
    """Make a kit for one more site; it takes part from the next job on."""
    from fiss.deployment import provisioning

    print(f"kit  {provisioning.add(folder, site)}")


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
    from fiss.reports.tracking import tracked

    for number in (signal.SIGTERM, signal.SIGHUP):  # end the job too
        signal.signal(number, signal.default_int_handler)
    with shown(True) as display, tracked(display, track, folder / "run") as told:
        try:
            run = supervise(folder, rounds, sites, told)
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
    """Where it stands, at the server or at a site: what it does now, rounds, classes, sites, warnings, its log."""
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
