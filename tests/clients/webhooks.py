"""Verifies a request with PyPI `standardwebhooks`: secret, header fields as JSON, and body."""

import json
import sys

from standardwebhooks import Webhook, WebhookVerificationError

secret, headers, body = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]
webhook = Webhook(secret)
assert webhook.verify(body, headers)["payload"]["is_test"]
try:
    webhook.verify(body + " ", headers)
except WebhookVerificationError:
    sys.exit(0)
sys.exit("a changed body was accepted")
