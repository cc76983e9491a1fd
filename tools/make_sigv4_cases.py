#!/usr/bin/env python3
"""Prints random requests with botocore's signatures for
src/s3/sigv4_cases_test.cc: fields in hexadecimal, one request per line.

    tools/make_sigv4_cases.py 300 >testdata/sigv4_cases.txt
"""

import datetime
import random
import sys

import botocore
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

SECRET = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
PLAIN = "".join(map(chr, range(32, 127))) + "\t"
OTHER = "äöüß漢字e\u0301😀\u00a0"
EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


def text(random_, least, most):
    return "".join(
        random_.choice(OTHER if random_.random() < 0.1 else PLAIN)
        for _ in range(random_.randint(least, most))
    )


def encode(value, safe):
    plain = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~"
    return "".join(
        chr(byte) if byte in plain + safe else f"%{byte:02X}"
        for byte in value.encode()
    )


def case(random_, time):
    method = random_.choice(["GET", "PUT", "POST", "HEAD", "DELETE"])
    host = random_.choice(["s3.example", "b.s3.eu-west-1.amazonaws.com",
                           "127.0.0.1:9000"])
    path = "/" + text(random_, 0, 40)
    query = [(text(random_, 1, 8), text(random_, 0, 12))
             for _ in range(random_.randint(0, 4))]
    if query and random_.random() < 0.3:
        query.append(query[0])
    headers = {}
    if random_.random() < 0.5:
        headers["Range"] = f"bytes={random_.randint(0, 99)}-"
    for name in ("x-amz-meta-a", "x-amz-meta-a-b", "X-Amz-Meta-B"):
        if random_.random() < 0.4:
            headers[name] = "  " + "".join(
                random_.choice("ab  c/=+;") for _ in range(12))
    payload = random_.choice(["UNSIGNED-PAYLOAD", EMPTY])
    region = random_.choice(["us-east-1", "eu-central-1"])
    token = random_.choice(["", "Fwo+/tok==" + text(random_, 0, 5).strip()
                            .encode("ascii", "ignore").decode().strip()])
    scheme = "http" if ":" in host else "https"
    url = f"{scheme}://{host}{encode(path, b'/')}"
    if query:
        url += "?" + "&".join(
            f"{encode(k, b'')}={encode(v, b'')}" for k, v in query)
    request = AWSRequest(method=method, url=url, headers=dict(headers))
    request.context["timestamp"] = time.strftime("%Y%m%dT%H%M%SZ")
    credentials = Credentials("AKIDEXAMPLE", SECRET, token or None)
    signer = S3SigV4Auth(credentials, "s3", region)
    signer.payload = lambda _: payload
    request.headers["X-Amz-Content-SHA256"] = payload
    request.headers["X-Amz-Date"] = request.context["timestamp"]
    if token:
        request.headers["X-Amz-Security-Token"] = token
    canonical = signer.canonical_request(request)
    to_sign = signer.string_to_sign(request, canonical)
    signature = signer.signature(to_sign, request)
    pairs = [part for pair in query for part in pair]
    lines = [part for pair in headers.items() for part in pair]
    fields = [method, host, path, payload, region, token, signature,
              str(len(query)), *pairs, *lines]
    return " ".join(field.encode().hex() or "-" for field in fields)


def main():
    count = int(sys.argv[1])
    random_ = random.Random(int(sys.argv[2]) if len(sys.argv) > 2 else 1)
    time = datetime.datetime(2026, 11, 22, 12, tzinfo=datetime.timezone.utc)
    print(f"# botocore {botocore.__version__}")
    for _ in range(count):
        print(case(random_, time))


if __name__ == "__main__":
    main()
