from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from engine.config import ConfigError
from server.config import ServerConfig
from server.http.listen import ListenError, address_of, bind_socket, check_certificate


def test_clients_are_refused_until_the_socket_listens() -> None:
    with bind_socket(ServerConfig(port=0)) as sock:
        address = sock.getsockname()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address, timeout=5)
        sock.listen()
        socket.create_connection(address, timeout=5).close()
        assert address_of(sock) == f"http://127.0.0.1:{address[1]}"


def test_an_address_for_all_interfaces_is_shown_as_one_to_call() -> None:
    with bind_socket(ServerConfig(host="0.0.0.0", port=0)) as sock:
        assert address_of(sock).startswith("http://127.0.0.1:")


def test_an_address_with_a_certificate_is_https() -> None:
    with bind_socket(ServerConfig(port=0)) as sock:
        assert address_of(sock, tls=True).startswith("https://127.0.0.1:")


def test_certificate_files_are_checked_before_anything_else(tmp_path: Path) -> None:
    broken = tmp_path / "broken.pem"
    broken.write_text("no certificate")
    for path in (broken, tmp_path / "missing.pem"):
        with pytest.raises(ConfigError, match="--ssl-certfile"):
            check_certificate(ServerConfig(ssl_certfile=str(path)))
    with pytest.raises(ConfigError, match="--ssl-keyfile needs --ssl-certfile"):
        ServerConfig(ssl_keyfile=str(broken))


@pytest.mark.parametrize("host", ["no.such.host.invalid", "203.0.113.1"])
def test_an_address_that_is_not_ours_is_named(host: str) -> None:
    with pytest.raises(ListenError, match=host):
        bind_socket(ServerConfig(host=host, port=0))


def test_a_port_in_use_is_one_line_and_no_model_is_loaded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        script = (
            "import sys; from server.cli.main import main; code = main(['serve', *sys.argv[1:]]);"
            "assert 'torch' not in sys.modules; sys.exit(code)"
        )
        command = [sys.executable, "-c", script, "--port", port]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    (line,) = result.stderr.splitlines()
    assert f"127.0.0.1:{port}" in line and "in use; --port" in line


def test_a_stale_unix_socket_is_replaced_and_one_in_use_is_left(tmp_path: Path) -> None:
    config = ServerConfig(uds=str(tmp_path / "octavo.sock"))
    bind_socket(config).close()
    with bind_socket(config) as sock:
        sock.listen()
        with pytest.raises(ListenError, match=r"octavo\.sock.*in use"):
            bind_socket(config)


def test_a_plain_file_in_the_way_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    path.write_text("mine")
    with pytest.raises(ListenError, match="notes"):
        bind_socket(ServerConfig(uds=str(path)))
    assert path.read_text() == "mine"
