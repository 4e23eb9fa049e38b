"""What an operator sees, as plain values. Imports none of the other packages; it is handed what it shows."""
