"""Hold a lease, so that only one of several programs does something at a time.

    python examples/take_a_lease.py & python examples/take_a_lease.py

The second waits until the first is through, or dead: a lease ends by itself when nobody renews it. `token` only grows,
so whatever you write to can refuse a writer that comes late with an old one.
"""

import asyncio

import wrasse


async def main() -> None:
    app = wrasse.connect()
    async with app:
        async with app.lease("orders/42", ttl="5s", wait="1m") as lease:
            print(f"holding {lease.key} with token {lease.token}")
            first = lease.token
            await asyncio.sleep(0.1)
        async with app.lease("orders/42") as lease:
            print("the next token is higher:", lease.token > first)


if __name__ == "__main__":
    asyncio.run(main())
