"""The code that uses torch. Imported only when torch is needed."""
