"""A service that converts untrusted uploads.

    python converter_service.py [PORT]

POST /convert?to=safetensors&dtype=bf16 with a checkpoint of any format as the
body; the response is the converted file. Nothing in the upload is executed. A
file that is damaged, needs code or is too large is refused with the reason.
"""

import http.server
import pathlib
import sys
import tempfile
import urllib.parse

import haulway

LARGEST = 16 << 30
ENDINGS = {"torch": ".pt", "safetensors": ".safetensors", "gguf": ".gguf",
           "npz": ".npz", "tensorizer": ".tensors"}


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        asked = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(self.path).query))
        length = int(self.headers.get("Content-Length", 0))
        ending = ENDINGS.get(asked.get("to", "safetensors"))
        if ending is None or not 0 < length <= LARGEST:
            return self.send_error(400, "unknown format or size")
        with tempfile.TemporaryDirectory() as folder:
            upload = pathlib.Path(folder, "upload")
            with open(upload, "wb") as file:
                while length > 0:
                    if not (part := self.rfile.read(min(length, 1 << 20))):
                        return self.send_error(400, "the upload ended early")
                    length -= file.write(part)
            try:
                haulway.convert(upload, upload.with_suffix(ending), ties="copy",
                                dtype=asked.get("dtype"), durability="none",
                                memory_budget="64MiB")
            except haulway.Error as error:
                return self.send_error(422, error.code, str(error))
            with open(upload.with_suffix(ending), "rb") as file:
                self.send_response(200)
                self.send_header("Content-Length", str(file.seek(0, 2)))
                self.end_headers()
                file.seek(0)
                self.wfile.writelines(iter(lambda: file.read(1 << 20), b""))

    def log_message(self, *arguments):
        pass


if __name__ == "__main__":
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
    print(f"http://127.0.0.1:{server.server_port}/convert", flush=True)
    server.serve_forever()
