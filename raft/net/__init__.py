"""The one transport: Kafka frames over asyncio protocols, server and client side."""
