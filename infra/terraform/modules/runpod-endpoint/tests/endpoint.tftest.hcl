mock_provider "restapi" {
  mock_resource "restapi_object" {
    defaults = {
      id = "abc123"
    }
  }
}

variables {
  image = "ghcr.io/someone/llm:1"
}

run "balances_and_sleeps_by_default" {
  command = apply

  assert {
    condition     = jsondecode(restapi_object.endpoint.data).workers.min == 0
    error_message = "It must scale to zero."
  }
  assert {
    condition     = jsondecode(restapi_object.endpoint.data).scaling == { type = "REQUEST_COUNT", requestCount = 16 }
    error_message = "A load balancer scales by requests."
  }
  assert {
    condition     = jsondecode(restapi_object.endpoint.data).env.HEALTH_CHECK_PATH == "/ping"
    error_message = "RunPod asks /ping."
  }
  assert {
    condition     = jsondecode(restapi_object.endpoint.data).ports == ["8000/http"]
    error_message = "The port is named."
  }
  assert {
    condition     = output.url == "https://abc123.api.runpod.ai"
    error_message = "The URL is an output."
  }
}

run "makes_a_queue" {
  command = apply

  variables {
    endpoint_type      = "QUEUE"
    secrets            = { AWS_SECRET_ACCESS_KEY = "bucket_key" }
    model_url          = "s3://models/llm.zse"
    regions            = ["EU-RO-1"]
    network_volume_ids = ["vol1"]
    registry_auth_id   = "auth1"
  }

  assert {
    condition     = !contains(keys(jsondecode(restapi_object.endpoint.data).env), "PORT")
    error_message = "PORT would make it a load balancer."
  }
  assert {
    condition     = jsondecode(restapi_object.endpoint.data).env.AWS_SECRET_ACCESS_KEY == "{{ RUNPOD_SECRET_bucket_key }}"
    error_message = "A secret is a reference."
  }
  assert {
    condition     = jsondecode(restapi_object.endpoint.data).scaling.type == "QUEUE_DELAY"
    error_message = "A queue scales by delay."
  }
  assert {
    condition     = output.url == "https://api.runpod.ai/v2/abc123"
    error_message = "The URL is an output."
  }
}

run "refuses_more_workers_at_least_than_at_most" {
  command = plan

  variables {
    min_instances = 2
  }

  expect_failures = [restapi_object.endpoint]
}

run "refuses_a_gpu_that_is_no_pool" {
  command = plan

  variables {
    gpu_types = ["NVIDIA L4"]
  }

  expect_failures = [var.gpu_types]
}
