"""The Python client, from an organization to a query and back."""

import asyncio
import sys

from supabase_management import SupabaseManagementAPI


async def main(url, token, organization):
    api = SupabaseManagementAPI(token, url)
    assert organization in [found["id"] for found in await api.get_organizations()]
    assert (await api.create_organization({"name": "Made by Python"}))["name"] == "Made by Python"

    body = {"name": "made by Python", "organization_id": organization, "db_pass": "x", "region": "us-east-1"}
    ref = (await api.create_project(body))["ref"]
    assert ref in [found["ref"] for found in await api.get_projects()]
    assert await api.run_query(ref, "select 7 as lucky") == [{"lucky": 7}]
    assert {"anon", "service_role"} <= {key["name"] for key in await api.get_project_api_keys(ref)}
    assert (await api.delete_project(ref))["ref"] == ref


asyncio.run(main(*sys.argv[1:]))
