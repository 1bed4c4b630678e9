"""The handlers of a broker's requests, one module per family.

Each module has a function or an attribute with its handlers, `{api key: Served}`;
`diskless.services` collects them, and `diskless.dispatch` announces them.
"""
