"""A real S3 server on loopback: one Ceph monitor, one object store in memory, one RADOS gateway.

    python scripts/services/ceph_s3.py install      # Debian packages, as root
    python scripts/services/ceph_s3.py start DIR    # prints export lines for the AWS variables
    python scripts/services/ceph_s3.py stop DIR     # ends the processes and deletes DIR

DIR must not exist or be empty. Objects live in the memory of one process (6 GiB at most).
"""

from __future__ import annotations

import contextlib
import json
import secrets
import sys
import uuid
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from service_command import empty_folder, run_command, stop_service
from service_packages import S3_PACKAGES, find_command
from service_process import LOOPBACK, free_ports, run_tool, spawn, stop_all, wait_for_http

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

STATE = "s3.json"
CONFIGURATION = """\
[global]
fsid = {fsid}
mon host = [v2:{host}:{v2_port},v1:{host}:{v1_port}]
public addr = {host}
cluster addr = {host}
auth cluster required = none
auth service required = none
auth client required = none
ms mon client mode = crc secure
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 4
osd pool default pgp num = 4
osd pool default pg autoscale mode = off
osd crush chooseleaf type = 0
osd objectstore = memstore
memstore device bytes = 6442450944
mon allow pool size one = true
mon max pg per osd = 1000
mon data avail crit = 0
mon data avail warn = 1
mon data = {folder}/mon
osd data = {folder}/osd
rgw data = {folder}/rgw
log file = {folder}/$name.internal.log
admin socket = {folder}/$name.asok
run dir = {folder}
pid file =
debug ms = 0
debug rgw = 1
rgw gc obj min wait = 1
rgw gc processor period = 5
rgw gc processor max time = 5
rgw override bucket index max shards = 1
"""


@dataclass(frozen=True, kw_only=True)
class S3Server:
    """A started server and the only user's keys."""

    endpoint_url: str
    access_key: str
    secret_key: str

    def environment(self) -> dict[str, str]:
        """Return the standard AWS variables that point clients at this server."""
        return {
            "AWS_ENDPOINT_URL_S3": self.endpoint_url,
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }


def start(folder: Path, *, die_with_parent: bool = False) -> S3Server:
    """Start a fresh server whose state is in ``folder``.

    Raises:
        ServiceError: A package is missing, the folder is in use, or a process did not come up.
    """
    folder = empty_folder(folder)
    for name in ("mon", "osd", "rgw"):
        (folder / name).mkdir(parents=True)
    try:
        server = _start(folder, die_with_parent=die_with_parent)
    except BaseException:
        stop_all(folder)
        raise
    (folder / STATE).write_text(json.dumps(asdict(server)))
    return server


def stop(folder: Path) -> None:
    """End the server of ``folder`` and delete the folder.

    Raises:
        ServiceError: The folder holds no server of this script.
    """
    stop_service(folder, "ceph.conf")


@contextlib.contextmanager
def running(folder: Path) -> Iterator[S3Server]:
    """Run a server for the length of a block; it also ends when this process is killed."""
    server = start(folder, die_with_parent=True)
    try:
        yield server
    finally:
        stop(folder)


def _start(folder: Path, *, die_with_parent: bool) -> S3Server:
    gateway_port, v2_port, v1_port = free_ports(3)
    fsid = str(uuid.uuid4())
    configuration = folder / "ceph.conf"
    configuration.write_text(
        CONFIGURATION.format(
            fsid=fsid, folder=folder, host=LOOPBACK, v2_port=v2_port, v1_port=v1_port
        )
    )
    common = ["--conf", str(configuration)]
    monitor_map = str(folder / "monmap")
    addresses = f"[v2:{LOOPBACK}:{v2_port},v1:{LOOPBACK}:{v1_port}]"
    run_tool(["monmaptool", "--create", "--fsid", fsid, "--addv", "a", addresses, monitor_map])

    monitor = [find_command("ceph-mon"), *common, "-i", "a"]
    run_tool([*monitor, "--mkfs", "--monmap", monitor_map])
    spawn(folder, "mon", [*monitor, "-f"], die_with_parent=die_with_parent)

    run_tool(["ceph", *common, "--connect-timeout", "120", "osd", "create"])
    object_store = [find_command("ceph-osd"), *common, "-i", "0"]
    run_tool([*object_store, "--mkfs"])
    spawn(folder, "osd", [*object_store, "-f"], die_with_parent=die_with_parent)

    # Without these two options on its command line the gateway asks for keys that do not exist.
    gateway = [find_command("radosgw"), *common, "-n", "client.rgw", "-f"]
    gateway += ["--auth-client-required=none", "--ms-mon-client-mode=crc"]
    gateway += [f"--rgw-frontends=beast endpoint={LOOPBACK}:{gateway_port}"]
    spawn(folder, "rgw", gateway, die_with_parent=die_with_parent)

    server = S3Server(
        endpoint_url=f"http://{LOOPBACK}:{gateway_port}",
        access_key="AK" + secrets.token_hex(9).upper(),
        secret_key=secrets.token_urlsafe(30),
    )
    user = ["--uid=zse", "--display-name=zse"]
    keys = [f"--access-key={server.access_key}", f"--secret-key={server.secret_key}"]
    run_tool(["radosgw-admin", *common, "user", "create", *user, *keys])
    wait_for_http(server.endpoint_url, folder, "rgw")
    return server


def _export_lines(folder: Path) -> Iterator[str]:
    for name, value in start(folder).environment().items():
        yield f"export {name}={value}"


if __name__ == "__main__":
    sys.exit(run_command(__doc__, S3_PACKAGES, _export_lines, stop))
