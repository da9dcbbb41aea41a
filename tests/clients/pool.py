"""A driver of PostgreSQL through the pooler: the name of the driver, then the address."""

import asyncio
import sys

CLIENTS = 40
TURNS = 20


def with_psycopg(url):
    import concurrent.futures

    import psycopg

    def work(client):
        with psycopg.connect(url, prepare_threshold=1) as connection:
            for turn in range(TURNS):
                found = connection.execute("select %s::int + %s::int", (client, turn)).fetchone()
                connection.commit()
                assert found == (client + turn,), found

    with concurrent.futures.ThreadPoolExecutor(CLIENTS) as executor:
        list(executor.map(work, range(CLIENTS)))


async def with_asyncpg(url):
    import asyncpg

    async with asyncpg.create_pool(url, min_size=CLIENTS, max_size=CLIENTS) as pool:

        async def work(client):
            for turn in range(TURNS):
                found = await pool.fetchval("select $1::int + $2::int", client, turn)
                assert found == client + turn, found

        await asyncio.gather(*(work(client) for client in range(CLIENTS)))


driver, address = sys.argv[1:]
if driver == "psycopg":
    with_psycopg(address)
else:
    asyncio.run(with_asyncpg(address))
