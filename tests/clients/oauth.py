"""The way of an application with a library: `begin` prints where the user goes, `end` takes the answer to its end."""

import json
import os
import sys

library, step, server, client_id, secret, redirect, *rest = sys.argv[1:]
# The server under test is on this machine.
os.environ["OAUTHLIB_INSECURE_TRANSPORT"] = "1"
os.environ["AUTHLIB_INSECURE_TRANSPORT"] = "1"

SCOPES = ["organizations:read", "projects:read", "database:read"]
AUTHORIZE, TOKEN, REVOKE = (server + path for path in ("/v1/oauth/authorize", "/oauth/token", "/oauth/revoke"))


def tried(session, status):
    answer = session.get(server + "/v1/projects")
    assert answer.status_code == status, answer.text


if library == "authlib":
    from authlib.common.security import generate_token
    from authlib.integrations.requests_client import OAuth2Session

    session = OAuth2Session(client_id, secret, scope=" ".join(SCOPES), redirect_uri=redirect, code_challenge_method="S256")
    if step == "begin":
        verifier = generate_token(48)
        url, state = session.create_authorization_url(AUTHORIZE, code_verifier=verifier)
        print(json.dumps({"url": url, "state": state, "verifier": verifier}))
    else:
        state, verifier, answer = rest
        session = OAuth2Session(client_id, secret, redirect_uri=redirect, state=state)
        token = session.fetch_token(TOKEN, authorization_response=answer, code_verifier=verifier)
        tried(session, 200)
        token = session.refresh_token(TOKEN, refresh_token=token["refresh_token"])
        tried(session, 200)
        assert session.revoke_token(REVOKE, token=token["refresh_token"], token_type_hint="refresh_token").status_code == 200
        session.token = {**token, "expires_at": None}
        tried(session, 401)
else:
    from requests_oauthlib import OAuth2Session

    if step == "begin":
        session = OAuth2Session(client_id, scope=SCOPES, redirect_uri=redirect, pkce="S256")
        url, state = session.authorization_url(AUTHORIZE)
        print(json.dumps({"url": url, "state": state, "verifier": session._code_verifier}))
    else:
        state, verifier, answer = rest
        session = OAuth2Session(client_id, scope=SCOPES, redirect_uri=redirect, state=state)
        token = session.fetch_token(TOKEN, authorization_response=answer, client_secret=secret, code_verifier=verifier)
        tried(session, 200)
        token = session.refresh_token(TOKEN, refresh_token=token["refresh_token"], auth=(client_id, secret))
        tried(session, 200)
        import requests

        body = {"token": token["refresh_token"], "client_id": client_id, "client_secret": secret}
        assert requests.post(REVOKE, data=body).status_code == 200
        tried(session, 401)
