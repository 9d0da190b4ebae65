"""`octavo serve`: from flags to a listening server, phase by phase."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import threading
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from engine.version import __version__
from server.cli.flags import add_config_arguments, build_configs

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping

    from engine.config import EngineConfig
    from server.config import ServerConfig


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = f"{parser.prog} [--config NAME_OR_PATH] [FLAGS]"  # fifty flags in a line help nobody
    add_config_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Serve until a signal or the engine's death.

    Raises `ConfigError` or `ModelError` before the port opens. Heavy modules are imported below, so that
    `--help` is quick and torch finds its environment set.
    """
    engine_config, server_config = build_configs(arguments)
    from engine.record.jsonl_writer import check_writable

    for log in (engine_config.event_log, engine_config.step_log):
        if log is not None:
            check_writable(log)  # here rather than after a model has been loaded
    from engine.environment import prepare_environment
    from server.cli.process import prepare_process
    from server.http.listen import ListenError, bind_socket, check_certificate

    prepare_environment()
    prepare_process(server_config.log_level)
    check_certificate(server_config)
    try:
        sock = bind_socket(server_config)
        try:
            return _serve(engine_config, server_config, sock)
        finally:
            if server_config.uds:
                Path(server_config.uds).unlink(missing_ok=True)
    except ListenError as error:
        print(f"octavo: {error}", file=sys.stderr)
        return 1


def _serve(engine_config: EngineConfig, server_config: ServerConfig, sock: socket.socket) -> int:
    from server.cli.process import importing, settle_memory
    from server.cli.progress import StartProgress

    progress = StartProgress()
    progress("finding the model")
    from engine.limits import context_limit
    from engine.runner.cute_ahead import compile_cute_ahead
    from engine.runner.triton_ahead import compile_triton_ahead
    from model.config_reader import read_model_config
    from model.source import resolve_model
    from server.text_bundle import load_text_bundle

    source = resolve_model(
        engine_config.model, engine_config.revision, with_weights=engine_config.load_format != "dummy"
    )
    context_limit(engine_config, read_model_config(source))  # refused here, before torch takes its seconds
    compile_triton_ahead(engine_config, source)
    compile_cute_ahead(engine_config, source)
    progress("reading the tokenizer")
    text = load_text_bundle(source, engine_config.tokenizer, server_config)
    progress("loading torch")
    with importing():
        from engine.build import build_engine

    # FastAPI takes over half a second to import, and loading weights leaves the interpreter idle for long.
    threading.Thread(target=import_module, args=("server.app",), name="octavo-import").start()
    engine = build_engine(engine_config, progress, source, text.tokenizer.eos_token_ids)
    progress("starting the server")
    from server.app import create_app
    from server.http.lifecycle import serve_until_stopped

    engine.start()
    if not server_config.served_model_name:
        server_config = replace(server_config, served_model_name=(source.name,))
    app = create_app(engine, text, server_config)
    settle_memory()

    def on_ready() -> None:
        progress.finish_phase()
        print(_greeting(server_config, sock, text.sampling_defaults, progress.seconds), flush=True)

    return serve_until_stopped(app, engine, server_config, sock, on_ready)


def _greeting(
    config: ServerConfig, sock: socket.socket, sampling_defaults: Mapping[str, float], seconds: float
) -> str:
    from server.http.listen import address_of

    name, address = config.served_model_name[0], address_of(sock, tls=config.ssl_certfile is not None)
    defaults = ", ".join(f"{key} {value:g}" for key, value in sampling_defaults.items()) or "the API's own"
    body = json.dumps({"model": name, "messages": [{"role": "user", "content": "Hello"}], "stream": True})
    curl = ["curl", "-N", f"{address}/v1/chat/completions", "-H", "Content-Type: application/json"]
    if config.uds:
        curl[2:3] = ["--unix-socket", config.uds, "http://localhost/v1/chat/completions"]
    if config.api_key:
        curl += ["-H", "Authorization: Bearer YOUR_KEY"]
    lines = [
        f"Octavo {__version__} serves {name} at {address}, ready in {seconds:.1f} s",
        f"Sampling defaults: {defaults}",
        f"Try it:\n  {shlex.join([*curl, '-d', body])}",
    ]
    if config.pages and not config.uds:
        lines.insert(1, f"In a browser: {address}/ to chat, {address}/dashboard to watch")
    return "\n".join(lines)
