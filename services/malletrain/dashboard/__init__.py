"""The page in the browser: a client of the five services without privileges of its own."""
