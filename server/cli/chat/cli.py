"""`octavo chat`: from flags to a conversation."""

from __future__ import annotations

import argparse
import os
import sys

from server.cli.chat.client import ChatClient, ChatError
from server.cli.chat.conversation import Conversation, ParameterSyntaxError
from server.cli.chat.terminal import Terminal
from server.cli.flags import API_KEY_VARIABLE

PARAMETER_FLAGS = {"temperature": float, "top_p": float, "max_tokens": int, "seed": int}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--url",
        default="http://127.0.0.1:8000",
        help="the server, as OpenAI clients take it; without a path it gets /v1 (default: %(default)s)",
    )
    parser.add_argument("--model", metavar="NAME", help="default: the first that the server lists")
    parser.add_argument("--api-key", metavar="KEY", help=f"default: ${API_KEY_VARIABLE}")
    parser.add_argument("--system", metavar="TEXT", default="", help="system prompt")
    for name, kind in PARAMETER_FLAGS.items():
        metavar = "N" if kind is int else "X"
        parser.add_argument(f"--{name.replace('_', '-')}", dest=name, type=kind, metavar=metavar)
    parser.add_argument(
        "--set", metavar="NAME=VALUE", action="append", default=[], help="any other parameter, repeatable"
    )


def run(arguments: argparse.Namespace) -> int:
    given = {name: getattr(arguments, name) for name in PARAMETER_FLAGS}
    conversation = Conversation(arguments.system, {k: v for k, v in given.items() if v is not None})
    try:
        unknown = conversation.set_parameters(arguments.set)
        client = ChatClient(arguments.url, arguments.api_key or os.environ.get(API_KEY_VARIABLE))
        if arguments.model or "model" not in conversation.parameters:
            conversation.parameters["model"] = arguments.model or client.first_model()
    except ParameterSyntaxError as error:
        print(f"octavo chat: --set {error}", file=sys.stderr)
        return 2
    except ChatError as error:
        print(f"octavo chat: {error}", file=sys.stderr)
        return 1
    for name in unknown:
        print(f"octavo chat: --set {name}: not a known parameter, sent as it is", file=sys.stderr)
    return Terminal(client, conversation).run()
