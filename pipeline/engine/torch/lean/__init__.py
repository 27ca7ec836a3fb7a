"""The lean pass: dense decoder models on a CPU, one parallel region per pass, the same bits for any number of rows."""
