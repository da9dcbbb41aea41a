"""Looks at a bucket with boto3: `s3.py ENDPOINT make` makes it, `s3.py ENDPOINT list` prints its keys."""

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
else:
    pages = client.get_paginator("list_objects_v2").paginate(Bucket="lines")
    print(json.dumps([found["Key"] for page in pages for found in page.get("Contents", [])]))
