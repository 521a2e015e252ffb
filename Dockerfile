# loganalyze in a container, for those who have Docker and no Python:
#
#   docker build -t loganalyze .
#   docker run --rm -v "$PWD:/logs:ro" loganalyze check server.log
#   docker run --rm -v "$PWD:/logs" --user "$(id -u):$(id -g)" loganalyze report server.log -o page.html
#   kubectl logs sglang-0 | docker run --rm -i loganalyze check -
#
# The base is that of the tests. It needs no network, no home and no writable root at run time
# (--network none --read-only --tmpfs /tmp): /tmp takes what comes from a pipe.

FROM python:3.11.13-slim-bookworm AS build
WORKDIR /src
COPY pyproject.toml MANIFEST.in README.md CHANGELOG.md LICENSE ./
COPY loganalyze loganalyze
RUN python -m venv /opt/loganalyze \
    && /opt/loganalyze/bin/pip install --no-cache-dir . \
    && /opt/loganalyze/bin/pip uninstall --yes pip setuptools

FROM python:3.11.13-slim-bookworm
COPY --from=build /opt/loganalyze /opt/loganalyze
ENV PATH=/opt/loganalyze/bin:$PATH
USER 10001:10001
WORKDIR /logs
ENTRYPOINT ["loganalyze"]
CMD ["--help"]
