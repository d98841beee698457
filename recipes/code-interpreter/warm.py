# Runs in the snapshot, before it is frozen.
import numpy
import pandas
from matplotlib import pyplot

pandas.DataFrame({"x": numpy.arange(4)}).describe()._repr_html_()
pyplot.figure(figsize=(2, 2))
pyplot.plot([1, 2], label="warm")
pyplot.legend()
pyplot.savefig("/dev/null", format="png")
pyplot.close("all")
