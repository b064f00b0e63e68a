"""A Terraform provider that knows what is allowed and does nothing.

    python schema_provider.py FOLDER NAME...

It serves each ``schemas/NAME.json`` on the socket FOLDER/NAME until standard input ends. Terraform finds
it through TF_REATTACH_PROVIDERS, so nothing is installed and no registry is asked; ``validate`` and
``test`` with mocked providers need no more than this.
"""

import sys
from concurrent.futures import ThreadPoolExecutor

import grpc
from schema import load_schema
from wire import provider_message


class SchemaOnly(grpc.GenericRpcHandler):
    """Answer GetSchema; let every configuration pass."""

    def __init__(self, answer: bytes) -> None:
        self.answer = answer

    def service(self, call: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        service, _, method = call.method.rpartition("/")
        if service != "/tfplugin5.Provider":
            return None  # standard output and brokering of plugins: not needed
        if method == "GetSchema":
            return grpc.unary_unary_rpc_method_handler(lambda *_: self.answer)
        if method == "PrepareProviderConfig":  # its answer and its question have one shape
            return grpc.unary_unary_rpc_method_handler(lambda question, _: question)
        return grpc.unary_unary_rpc_method_handler(lambda *_: b"")


def main() -> None:
    folder, *names = sys.argv[1:]
    servers = []
    for name in names:
        server = grpc.server(ThreadPoolExecutor(4), options=[("grpc.max_send_message_length", -1)])
        server.add_generic_rpc_handlers((SchemaOnly(provider_message(load_schema(name))),))
        server.add_insecure_port(f"unix:{folder}/{name}")
        server.start()
        servers.append(server)
    print("ready", flush=True)
    sys.stdin.read()
    for server in servers:
        server.stop(0)


if __name__ == "__main__":
    main()
