"""The inspector's browser side: columns for it, its modules joined into one file, and the page that needs no kernel."""
