from pathlib import Path

from zse.device import host


def test_a_host_is_its_boot_and_the_namespace_of_its_sockets():
    boot, namespace = host.host_identity().split()
    assert boot == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert namespace.startswith("net:[")


def test_a_system_that_does_not_say_has_no_identity(monkeypatch, tmp_path):
    monkeypatch.setattr(host, "_BOOT_ID", tmp_path / "absent")
    assert host.host_identity() == ""
