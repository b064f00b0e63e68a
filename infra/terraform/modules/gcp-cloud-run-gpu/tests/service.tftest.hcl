mock_provider "google" {
  mock_resource "google_cloud_run_v2_service" {
    defaults = {
      uri = "https://zse-abc-uc.a.run.app"
    }
  }

  mock_resource "google_service_account" {
    defaults = {
      email = "zse-run@project.iam.gserviceaccount.com"
    }
  }
}

variables {
  image  = "us-docker.pkg.dev/project/repository/llm:1"
  region = "us-central1"
}

run "sleeps_with_one_l4_by_default" {
  command = apply

  assert {
    condition     = google_cloud_run_v2_service.this.template[0].scaling[0].min_instance_count == 0
    error_message = "It must scale to zero."
  }
  assert {
    condition     = google_cloud_run_v2_service.this.template[0].node_selector[0].accelerator == "nvidia-l4"
    error_message = "The GPU is an L4."
  }
  assert {
    condition     = google_cloud_run_v2_service.this.template[0].gpu_zonal_redundancy_disabled == true
    error_message = "Zonal redundancy is off."
  }
  assert {
    condition     = google_cloud_run_v2_service.this.template[0].containers[0].resources[0].cpu_idle == false
    error_message = "A GPU service must not throttle its processors."
  }
  assert {
    condition     = google_cloud_run_v2_service.this.template[0].containers[0].resources[0].limits["memory"] == "16Gi"
    error_message = "An L4 needs 16Gi."
  }
  assert {
    condition     = google_cloud_run_v2_service.this.template[0].containers[0].startup_probe[0].http_get[0].path == "/health/ready"
    error_message = "The startup probe waits for the model."
  }
  assert {
    condition = (
      google_cloud_run_v2_service.this.template[0].containers[0].startup_probe[0].failure_threshold
      * google_cloud_run_v2_service.this.template[0].containers[0].startup_probe[0].period_seconds
    ) == 240
    error_message = "The startup window is 240 s."
  }
  assert {
    condition     = output.url == "https://zse-abc-uc.a.run.app"
    error_message = "The URL is an output."
  }
  assert {
    condition     = length(google_cloud_run_v2_service_iam_member.invokers) == 0
    error_message = "Nobody may ask unless it is said."
  }
}

run "mounts_a_bucket_and_reads_secrets" {
  command = apply

  variables {
    models_bucket = "models"
    model_file    = "qwen.zse"
    secrets       = { HF_TOKEN = "hub", AWS_SECRET_ACCESS_KEY = "bucket:7" }
    public        = true
    env           = { ZSE_PUBLIC = "1" }
    gpu_type      = "nvidia-rtx-pro-6000"
  }

  assert {
    condition = contains(
      [for e in google_cloud_run_v2_service.this.template[0].containers[0].env : "${e.name}=${e.value}" if e.value != null],
      "ZSE_MODEL=/models/qwen.zse",
    )
    error_message = "The server is told where the model lies."
  }
  assert {
    condition     = google_cloud_run_v2_service.this.template[0].volumes[0].gcs[0].read_only == true
    error_message = "The bucket is mounted read-only."
  }
  assert {
    condition     = toset(keys(google_secret_manager_secret_iam_member.this)) == toset(["bucket", "hub"])
    error_message = "The service account may read both secrets."
  }
  assert {
    condition     = google_cloud_run_v2_service_iam_member.invokers["allUsers"].role == "roles/run.invoker"
    error_message = "A public service is open to all."
  }
  assert {
    condition     = google_cloud_run_v2_service.this.template[0].containers[0].resources[0].limits["cpu"] == "20"
    error_message = "An RTX PRO 6000 needs 20 processors."
  }
}

run "refuses_an_unknown_gpu" {
  command = plan

  variables {
    gpu_type = "nvidia-t4"
  }

  expect_failures = [var.gpu_type]
}

run "refuses_two_places_for_the_model" {
  command = plan

  variables {
    model_url     = "s3://bucket/model.zse"
    models_bucket = "models"
  }

  expect_failures = [google_cloud_run_v2_service.this]
}
