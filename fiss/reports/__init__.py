"""What came out, for people: tables, figures, pictures, one page."""
