"""Databases of the services: one SQLite file each in the state folder, or one schema each in a PostgreSQL database."""
