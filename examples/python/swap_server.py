"""A server that replaces its model while it serves.

    python swap_server.py NAME [PORT]

Another process publishes with haulway.publish(NAME, {"weight": ..., "bias":
...}). POST / applies the newest version to a JSON list of numbers; GET /
returns its number. A request uses one version, even if a newer one arrives.
"""

import http.server
import json
import sys
import threading

import numpy

import haulway


class Model:
    def __init__(self, name):
        self.subscription = haulway.subscribe(name, timeout=60)
        self.current = self.subscription.version, self.subscription.state
        threading.Thread(target=self.follow, daemon=True).start()

    def follow(self):
        while True:
            version = self.subscription.wait()
            self.current = version, self.subscription.state  # Atomically.

    def answer(self, numbers):
        version, state = self.current
        result = state["weight"] @ numpy.asarray(numbers) + state["bias"]
        return {"version": version, "result": result.tolist()}


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send({"version": self.server.model.current[0]})

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send(self.server.model.answer(json.loads(body)))

    def send(self, answer):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, *arguments):
        pass


if __name__ == "__main__":
    name, port = (*sys.argv, 0)[1:3]
    server = http.server.ThreadingHTTPServer(("127.0.0.1", int(port)), Handler)
    server.model = Model(name)
    print(f"http://127.0.0.1:{server.server_port}/", flush=True)
    server.serve_forever()
