"""Looks at a bucket with boto3.

`s3.py ENDPOINT make` makes it, `list` prints its keys, and `drained` prints the messages of the log lines
in all objects of a log drain.
"""

import gzip
import json
import sys

import boto3

endpoint, what = sys.argv[1:]
client = boto3.client(
    "s3", endpoint_url=endpoint, region_name="us-east-1", aws_access_key_id="other", aws_secret_access_key="other"
)
if what == "make":
    client.create_bucket(Bucket="lines")
    print("null")
elif what == "drained":
    messages = []
    pages = client.get_paginator("list_objects_v2").paginate(Bucket="lines")
    for found in (found for page in pages for found in page.get("Contents", [])):
        if found["Key"].endswith(".ndjson.gz"):
            body = client.get_object(Bucket="lines", Key=found["Key"])["Body"].read()
            messages += [json.loads(line)["event_message"] for line in gzip.decompress(body).splitlines()]
    print(json.dumps(messages))
else:
    pages = client.get_paginator("list_objects_v2").paginate(Bucket="lines")
    print(json.dumps([found["Key"] for page in pages for found in page.get("Contents", [])]))
